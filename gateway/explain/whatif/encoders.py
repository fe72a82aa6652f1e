"""The models' tokenizers in the process that explains: loaded when they are needed first, and only used where they give
the very tokens that the gateway's gave."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gateway.core.explanation import RequestRecord
from gateway.core.request import Endpoint
from gateway.explain.worker.explain_messages import ModelOptions, Notice

_CACHE_MIB = 32
_TRIALS = 3
"""So often it is looked whether it gives the same tokens: one request may be odd."""


class PromptEncoder(Protocol):
    """As ``LocalEncoder``."""

    @property
    def tokenizer_id(self) -> str:
        """Hash of the tokenizer."""
        ...

    def encode(self, endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[bytes, ...]:
        """Token ids of every prompt of a request."""
        ...

    def encode_text(self, text: str) -> bytes:
        """Token ids of a text as it stands."""
        ...


Load = Callable[[ModelOptions], PromptEncoder]


class Encoders:
    """The tokenizers of all models.

    Args:
        models: What there is to load.
        load: Loads one; called in a thread of its own.
    """

    def __init__(self, models: Mapping[str, ModelOptions], load: Load) -> None:
        self._load = load
        self._notices: list[Notice] = []
        self._models = models
        self._loading: set[ModelOptions] = set()
        self._loaded: dict[ModelOptions, PromptEncoder | None] = {}
        self._trials: dict[tuple[ModelOptions, str, str], int] = {}

    def configure(self, models: Mapping[str, ModelOptions]) -> None:
        """Go by other terms from now on; what could not be loaded, or did not fit, is tried again."""
        self._models = models
        wanted = set(models.values())
        self._loaded = {
            terms: loaded for terms, loaded in self._loaded.items() if loaded is not None and terms in wanted
        }
        self._trials.clear()

    def notices(self) -> Sequence[Notice]:
        """What is to be logged since this was last asked."""
        notices, self._notices = self._notices, []
        return notices

    def loaded(self, model: str) -> PromptEncoder | None:
        """The encoder of a model if it is there, whatever tokens it gives."""
        terms = self._models.get(model)
        return None if terms is None else self._loaded.get(terms)

    def wanting(self, finished: RequestRecord) -> bool:
        """Whether what rules bring to a request of this kind cannot be told if they change it: the tokenizer is being
        loaded, or cannot be used. Not before it was needed once."""
        terms = self._models.get(finished.model)
        if terms is None or terms in self._loading or self._loaded.get(terms, ...) is None:
            return True
        return self._trials.get(_trial(terms, finished), 0) >= _TRIALS

    def of(self, finished: RequestRecord, fields: Mapping[str, Any]) -> PromptEncoder | None:
        """The encoder of a request's model; None if there is none, or not yet, or it gives other tokens.

        Args:
            finished: The request; its token ids are the gateway's.
            fields: The request as it was sent.
        """
        terms = self._models.get(finished.model)
        if terms is None:
            return None
        if terms not in self._loaded:
            self._begin(finished.model, terms)
            return None
        encoder = self._loaded[terms]
        if encoder is None:
            return None
        return encoder if self._is_proved(finished, fields, terms, encoder) else None

    def _begin(self, model: str, terms: ModelOptions) -> None:
        """Load it in a thread: meanwhile other requests are explained."""
        if terms in self._loading:
            return
        self._loading.add(terms)

        def load() -> None:
            try:
                encoder: PromptEncoder | None = self._load(terms)
            except Exception as error:  # noqa: BLE001 - whatever it is, rules of this model are not observed
                encoder = None
                self._tell(model, f"its tokenizer cannot be loaded: {type(error).__name__}: {error}")
            self._loaded[terms] = encoder
            self._loading.discard(terms)

        threading.Thread(target=load, name=f"tokenizer-{model}", daemon=True).start()

    def _is_proved(
        self, finished: RequestRecord, fields: Mapping[str, Any], terms: ModelOptions, encoder: PromptEncoder
    ) -> bool:
        """Whether it gives the tokens that the gateway has of this request, or gave them of an earlier one."""
        key = _trial(terms, finished)
        failed = self._trials.get(key, 0)
        if failed < 0 or failed >= _TRIALS:
            return failed < 0
        if (
            encoder.tokenizer_id == finished.where.tokenizer
            and encoder.encode(Endpoint(finished.endpoint), fields) == finished.parts
        ):
            self._trials[key] = -1
            return True
        self._trials[key] = failed + 1
        if failed + 1 == _TRIALS:
            self._tell(finished.model, "its tokenizer gives other tokens here than in the gateway")
        return False

    def _tell(self, model: str, problem: str) -> None:
        instead = "what rules would save is not worked out for this model"
        self._notices.append(Notice("canon_not_observed", {"model": model, "problem": problem, "instead": instead}))


def _trial(terms: ModelOptions, finished: RequestRecord) -> tuple[ModelOptions, str, str]:
    return terms, finished.where.tokenizer, finished.where.template


def load_encoder(terms: ModelOptions) -> PromptEncoder:
    """Load a model's tokenizer and chat template.

    Raises:
        TokenizerUnavailable: it cannot be loaded.
    """
    from gateway.tokenize import load_local

    return load_local(
        terms.tokenizer,
        chat_template=terms.chat_template,
        template_arguments=json.loads(terms.template_arguments),
        content_format=terms.content_format,
        cache_mib=_CACHE_MIB,
    )
