"""Turns recorded requests into request records, as the gateway does with live ones: parse, encode, name the space."""

import contextlib
import json
from collections import Counter
from typing import Any

import orjson
import xxhash

from gateway.api.parse import parse_request
from gateway.core.canonical import Canonicalized, RuleName, default_mode
from gateway.core.errors import GatewayError, TokenizerUnavailable
from gateway.core.explanation import ReplyChoice, RequestRecord, SpaceKey
from gateway.core.ids import RequestId
from gateway.core.portions import finished
from gateway.core.prompt import TOKEN_BYTES, TokenSource
from gateway.core.request import LONG_BODY_BYTES, ChatRequest, Endpoint
from gateway.core.tenant import EVERYBODY
from gateway.evaluation.analysis.analysis_options import AnalysisOptions
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.logs.logged_request import LoggedRequest, UnreadableEntry
from gateway.explain.worker.explain_messages import ModelOptions
from gateway.request_record import opening_and_turn
from gateway.tokenize.encoder import check_size, stand_in
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder

_OBSERVED = Canonicalized(modes=tuple(map(default_mode, RuleName)))
NO_MODEL = "any"
"""The model of a body that names none."""

OTHER_MODELS = "(other)"
"""The model of all beyond a number of them."""

_MAX_MODELS = 64
_MAX_TOKENS = 524_288
"""Longer prompts are explained without text and tokens, as in the gateway."""

_LABEL_CHARS = 64
_UNKNOWN_TENANT = "default"
_SMALL_BYTES = 32 * 1024


class RecordEncoding:
    """Encodes the requests of a log.

    Args:
        options: The options of the analysis.

    Raises:
        BadInput: A tokenizer cannot be loaded.

    Attributes:
        not_encoded: Requests whose tokens are only estimated, because they hold media or no tokenizer fits.
        models: Requests by model.
    """

    def __init__(self, options: AnalysisOptions) -> None:
        self._options = options
        self._encoders: dict[ModelOptions, LocalEncoder] = {}
        self.not_encoded = 0
        self.models: Counter[str] = Counter()
        for each in dict.fromkeys([options.otherwise, *options.models.values()]):
            if each is not None:
                self._encoders[each] = _loaded(each)

    def request(self, logged: LoggedRequest) -> ChatRequest:
        """The request as the gateway parses it.

        Raises:
            UnreadableEntry: The gateway would refuse it.
        """
        body = logged.body
        model = body.get("model")
        if not isinstance(model, str) or not model:
            model = NO_MODEL
            body = body | {"model": model}
        try:
            encoded = orjson.dumps(body)
        except TypeError:
            encoded = json.dumps(body).encode()
        try:
            return finished(
                parse_request(
                    logged.endpoint,
                    b"",
                    encoded,
                    (),
                    models=[model],
                    limits=self._options.limits,
                    hold=lambda _: None,
                    request_id=RequestId(logged.place),
                    received_at=0.0,
                    caller=EVERYBODY,
                    peer="",
                    named={b"x-session-id": logged.session.encode("utf-8", "surrogatepass")},
                )
            )
        except GatewayError as refused:
            raise UnreadableEntry(f"a request that a gateway refuses ({refused.code})") from None

    def record(self, request: ChatRequest, logged: LoggedRequest, at: float) -> RequestRecord:
        """The record of a parsed request, answered at ``at``, without any hits."""
        model = self._model_label(request.model)
        encoder = self._encoder(request.model)
        parts, source, variant = self._parts(request, logged, encoder)
        tokens = sum(map(len, parts)) // TOKEN_BYTES
        tenant = logged.tenant[:_LABEL_CHARS] or _UNKNOWN_TENANT
        with_text = tokens <= _MAX_TOKENS
        opening, turn = opening_and_turn(request.fields)
        return RequestRecord(
            request_id=logged.place,
            at=at,
            model=model,
            endpoint=request.endpoint,
            tenant=tenant,
            tenant_label=tenant,
            source=logged.source,
            session=logged.session,
            where=SpaceKey(
                model,
                tokenizer=encoder.tokenizer_id if encoder else "",
                template=encoder.template_hash if encoder else "",
                owner=f"tenant:{tenant}" if self._options.is_isolated else "",
                narrowed=_narrowed(request.fields.get("cache_salt")),
                variant=variant,
            ),
            life="",
            body=request.body if with_text and len(request.body) <= LONG_BODY_BYTES else b"",
            parts=parts if with_text else (),
            replies=_replies(logged, encoder) if with_text and len(parts) == 1 else (),
            token_source=source,
            block_size=self._options.block_size,
            prompt_tokens=tokens,
            own_tokens=tokens,
            predicted_tokens=0,
            cached_tokens=None,
            completion_tokens=logged.usage.output_tokens if logged.usage else None,
            replica="",
            rank=0,
            decision="",
            policy="",
            holders=(),
            bypasses_cache=False,
            is_blind=False,
            template_tells_time=encoder is not None and encoder.tells_time,
            tools_first=encoder is not None and encoder.tools_first,
            status=200,
            ending="",
            streamed=request.stream,
            ttft_seconds=None,
            seconds=0.0,
            failed_attempts=0,
            prefill_seconds_per_token=0.0,
            sent_after_seconds=0.0,
            stages=(),
            warming=False,
            canonical=_OBSERVED if self._options.with_rules and with_text else Canonicalized(),
            opening=opening,
            turn=turn,
        )

    def _encoder(self, model: str) -> LocalEncoder | None:
        options = self._options.options_of(model)
        return None if options is None else self._encoders[options]

    def _parts(
        self, request: ChatRequest, logged: LoggedRequest, encoder: LocalEncoder | None
    ) -> tuple[tuple[bytes, ...], TokenSource, str]:
        """Token ids of every prompt, where they come from, and the variant of their space."""
        if logged.token_ids is not None:
            return (logged.token_ids,), TokenSource.LOCAL, ""
        if encoder is not None:
            # As in the gateway: media, or a template that fails in any way on a strange request.
            with contextlib.suppress(Exception):
                if len(request.body) > _SMALL_BYTES:
                    check_size(request.endpoint, request.fields)
                return encoder.encode(request.endpoint, request.fields), TokenSource.LOCAL, ""
        self.not_encoded += 1
        return stand_in(request.endpoint, request.fields), TokenSource.TEXT, "text"

    def _model_label(self, model: str) -> str:
        """The model's name; beyond a number of models, one name for all others."""
        if model not in self.models and len(self.models) >= _MAX_MODELS:
            model = OTHER_MODELS
        self.models[model] += 1
        return model


def _loaded(options: ModelOptions) -> LocalEncoder:
    try:
        arguments: dict[str, Any] = json.loads(options.template_arguments)
        return load_local(
            options.tokenizer,
            chat_template=options.chat_template,
            template_arguments=arguments,
            content_format=options.content_format,
        )
    except (TokenizerUnavailable, OSError, ValueError) as error:
        raise BadInput(f"the tokenizer {options.tokenizer} cannot be loaded: {error}") from None


def _narrowed(salt: Any) -> str:
    if not isinstance(salt, str) or not salt:
        return ""
    return f"{xxhash.xxh3_64_intdigest(salt.encode('utf-8', 'surrogatepass')):x}"


def _replies(logged: LoggedRequest, encoder: LocalEncoder | None) -> tuple[ReplyChoice, ...]:
    """The answer, whose tokens the engine's cache holds, too."""
    if not logged.reply or encoder is None or logged.endpoint is not Endpoint.CHAT:
        return ()
    ids = encoder.encode_text(logged.reply)
    return (ReplyChoice(logged.reply, ids, len(ids) // TOKEN_BYTES),)
