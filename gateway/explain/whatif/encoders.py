"""Tokenizers in the explain worker: loaded on first use, and used only if they produce the gateway's tokens."""

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.core.errors import TokenizerUnavailable
from gateway.core.explanation import RequestRecord
from gateway.core.request import Endpoint
from gateway.engines import other_rules
from gateway.explain.worker.explain_messages import ModelOptions, Notice

if TYPE_CHECKING:  # it is loaded on first use
    from gateway.tokenize.local import LocalEncoder

_CACHE_MIB = 32
_TRIALS = 3
"""Number of requests compared before a tokenizer is rejected: a single one may be unusual."""


Load = Callable[[ModelOptions], "LocalEncoder"]


class Encoders:
    """The tokenizers of all models.

    Args:
        models: Tokenizer options by model.
        load: Loads a tokenizer; called in a thread.
    """

    def __init__(self, models: Mapping[str, ModelOptions], load: Load) -> None:
        self._load = load
        self._notices: list[Notice] = []
        self._models = models
        self._loading: set[ModelOptions] = set()
        self._loaded: dict[ModelOptions, LocalEncoder | None] = {}
        self._trials: dict[tuple[ModelOptions, str, str], int] = {}

    def configure(self, models: Mapping[str, ModelOptions]) -> None:
        """Apply other options; failed or rejected tokenizers are tried again."""
        self._models = models
        wanted = set(models.values())
        self._loaded = {
            options: loaded for options, loaded in self._loaded.items() if loaded is not None and options in wanted
        }
        self._trials.clear()

    @property
    def is_loading(self) -> bool:
        """Whether a tokenizer is being loaded."""
        return bool(self._loading)

    def load_all(self) -> None:
        """Load all tokenizers now, for requests of the past: those that come meanwhile would not be observed."""
        for model, options in self._models.items():
            if options not in self._loaded and options not in self._loading:
                self._load_now(model, options)

    def notices(self) -> Sequence[Notice]:
        """Takes the notices added since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def loaded(self, model: str) -> "LocalEncoder | None":
        """The encoder of a model if it is loaded, even if it is not verified."""
        options = self._models.get(model)
        return None if options is None else self._loaded.get(options)

    def is_unavailable(self, record: RequestRecord) -> bool:
        """Whether changed requests of this kind cannot be encoded: tokenizer is loading, failed, or was rejected."""
        options = self._models.get(record.model)
        if options is None or options in self._loading or self._loaded.get(options, ...) is None:
            return True
        return self._trials.get(_trial(options, record), 0) >= _TRIALS

    def of(self, record: RequestRecord, fields: Mapping[str, Any]) -> "LocalEncoder | None":
        """The verified encoder of a request's model; None if it is missing, loading, or produces other tokens.

        Args:
            record: The request with the gateway's token ids.
            fields: Its body as sent.
        """
        options = self._models.get(record.model)
        if options is None:
            return None
        if options not in self._loaded:
            self._begin(record.model, options)
            return None
        encoder = self._loaded[options]
        if encoder is None:
            return None
        return encoder if self._is_verified(record, fields, options, encoder) else None

    def _begin(self, model: str, options: ModelOptions) -> None:
        """Load a tokenizer in a thread, so that other requests are explained meanwhile."""
        if options in self._loading:
            return
        self._loading.add(options)
        threading.Thread(target=self._load_now, args=(model, options), name=f"tokenizer-{model}", daemon=True).start()

    def _load_now(self, model: str, options: ModelOptions) -> None:
        try:
            encoder: LocalEncoder | None = self._load(options)
        except BaseException as error:  # noqa: BLE001 - any failure, also a panic of Rust, only turns off the observation
            encoder = None
            self._add_notice(model, f"its tokenizer cannot be loaded: {type(error).__name__}: {error}")
        self._loaded[options] = encoder
        self._loading.discard(options)

    def _is_verified(
        self, record: RequestRecord, fields: Mapping[str, Any], options: ModelOptions, encoder: "LocalEncoder"
    ) -> bool:
        """Whether the encoder produces the gateway's tokens for this request, or did so for an earlier one."""
        key = _trial(options, record)
        failed = self._trials.get(key, 0)
        if failed < 0 or failed >= _TRIALS:
            return failed < 0
        for rules in (
            (encoder.rules, *other_rules(encoder.rules)) if encoder.tokenizer_id == record.where.tokenizer else ()
        ):
            with contextlib.suppress(TokenizerUnavailable):
                if encoder.encode(Endpoint(record.endpoint), fields, rules) == record.parts:
                    encoder.use(rules)
                    self._trials[key] = -1
                    return True
        self._trials[key] = failed + 1
        if failed + 1 == _TRIALS:
            self._add_notice(record.model, "its tokenizer gives other tokens here than in the gateway")
        return False

    def _add_notice(self, model: str, problem: str) -> None:
        instead = "what rules would save is not worked out for this model"
        self._notices.append(Notice("canon_not_observed", {"model": model, "problem": problem, "instead": instead}))


def _trial(options: ModelOptions, record: RequestRecord) -> tuple[ModelOptions, str, str]:
    return options, record.where.tokenizer, record.where.template


def load_encoder(options: ModelOptions) -> "LocalEncoder":
    """Load a model's tokenizer and chat template.

    Raises:
        TokenizerUnavailable: It cannot be loaded.
    """
    from gateway.tokenize.load_tokenizer import load_local

    return load_local(
        options.tokenizer,
        chat_template=options.chat_template,
        template_arguments=json.loads(options.template_arguments),
        content_format=options.content_format,
        cache_mib=_CACHE_MIB,
    )
