"""The protocol between the gateway and the explain worker.

Messages travel over a socket pair in frames: four bytes of payload length (little-endian), one byte for the type of the
message, and the message as MessagePack. Both ends run the same code, so there are no versions.

Messages about requests are *work*: they are handled in order, and ``WorkReport`` reports their results.
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from struct import Struct
from typing import Any, Literal, get_args

import msgspec

from gateway.core.canonical import RuleMode
from gateway.core.client_places import ClientPlaces
from gateway.core.experiment_group import ExperimentSample
from gateway.core.explanation import CacheEvent, ReplicaPrefix, RequestRecord, SkippedTotals
from gateway.core.reasons import Reason
from gateway.stats.markers import Marker
from gateway.stats.prices import TokenPrices


class ModelOptions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tokenizer options of a model.

    Attributes:
        tokenizer: As in ``ModelSettings``; not ``engine``.
        chat_template: Text of the chat template, where it is not the tokenizer's own.
        template_arguments: Default variables of the template, JSON.
        content_format: ``string`` or ``openai``; None detects it.
    """

    tokenizer: str
    chat_template: str | None = None
    template_arguments: bytes = b"{}"
    content_format: Literal["string", "openai"] | None = None


class CanonOptions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Canonicalization rules, and the tokenizers needed to observe them.

    Attributes:
        settings: ``CanonSettings`` as JSON.
        models: Tokenizer options by model id; without models that only the engine tokenizes.
    """

    settings: bytes
    models: Mapping[str, ModelOptions]


class WorkerOptions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """To the worker: its options, as the first message and on every change.

    Attributes:
        max_waiting_bytes: Maximum bytes of all messages waiting to be explained.
        journal_requests: As in ``ExplainSettings``.
        journal_ttl_seconds: Likewise.
        reference_bytes: Memory for earlier prompts.
        reference_ttl_seconds: As in ``ExplainSettings``.
        seen_blocks: Likewise.
        gpu_hour_price: Likewise.
        currency: Likewise.
        gpus: GPUs per replica, by model; 1 by default.
        canon: Rules to observe; None observes none.
        publishes_seen: Whether computed prompts are reported to other gateways.
        experiment: ``ExperimentSettings``, to be shown with the results, and ``since``, when they were applied (Unix
            seconds); None without an experiment.
        token_prices: As ``ComputePrice.tokens``.
        observed_share: As in ``ExplainSettings``.
    """

    max_waiting_bytes: int
    journal_requests: int
    journal_ttl_seconds: float
    reference_bytes: int
    reference_ttl_seconds: float
    seen_blocks: int
    gpu_hour_price: float | None
    currency: str
    gpus: Mapping[str, float]
    canon: CanonOptions | None = None
    publishes_seen: bool = False
    experiment: Mapping[str, float | str] | None = None
    token_prices: Mapping[str, TokenPrices] = {}
    observed_share: float = 1.0


class RepeatedRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """To the worker, work: what differs between a request and an earlier one with the same explanation, to the token.

    The other fields are as in ``RequestRecord``; those that are not here have the values of the earlier request.

    Attributes:
        number: ``RequestRecord.number`` of the earlier one.
    """

    number: int
    request_id: str
    at: float
    decision: str
    policy: str
    holders: tuple[ReplicaPrefix, ...]
    ending: str
    streamed: bool
    ttft_seconds: float | None
    seconds: float
    failed_attempts: int
    prefill_seconds_per_token: float
    sent_after_seconds: float
    stages: tuple[tuple[str, float], ...]

    @staticmethod
    def of(record: RequestRecord, number: int) -> "RepeatedRequest":
        """What differs in a request from the earlier one with this number."""
        return RepeatedRequest(number, *_repeated_values(record))

    def record(self, earlier: RequestRecord) -> RequestRecord:
        """The whole request; ``earlier`` is the one that it refers to."""
        return msgspec.structs.replace(earlier, **{name: getattr(self, name) for name in _REPEATED})


_REPEATED = RepeatedRequest.__struct_fields__[1:]
_repeated_values = attrgetter(*_REPEATED)


class StoredHistory(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """To the worker: the history of an earlier one, as the question ``history`` was answered.

    Attributes:
        data: The answer.
    """

    data: bytes


class PeerPrompts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """To the worker, work: prompts computed for another gateway.

    Attributes:
        at: Time of receipt, Unix seconds.
        messages: ``WorkReport.seen`` of the other gateway's worker, once or several times.
    """

    at: float
    messages: tuple[bytes, ...]


class Question(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """To the worker: a query as in ``ExplainClient.ask``. The answer repeats ``number``; ``others`` as in ``Stats``."""

    number: int
    question: str
    arguments: Mapping[str, str]
    others: tuple[bytes, ...] | None = ()


class NamedComparison(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """To the worker, work: a request to compare with the one that its client names, before it is computed.

    It is work because it may name a request right before it. It is answered by a ``QuestionAnswer``.

    Attributes:
        number: As of a ``Question``.
        named: As ``ChatRequest.compares``.
        client: As ``ChatRequest.places``.
        record: What is known of the request before it is sent.
    """

    number: int
    named: str
    client: ClientPlaces
    record: RequestRecord


class Ready(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From the worker: it has its options and starts.

    Attributes:
        pid: Its process.
    """

    pid: int = 0


class WorkReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From the worker: results of handled messages.

    Attributes:
        handled: Number of messages handled since the last report.
        undecodable: Indexes, from 0, of those that could not be decoded, or that refer to a request that is not known.
        missed: Tokens by model, tenant label and reason.
        canonical: Edits, saved and lost tokens, by rule and mode; of requests in the sample, times their weight.
        seen: Computed prompts to report to other gateways, encoded by ``SeenPublisher``; empty for none.
        cpu_seconds: CPU time of explaining requests with their text.
    """

    handled: int
    undecodable: tuple[int, ...]
    missed: tuple[tuple[str, str, Reason, int], ...]
    canonical: tuple[tuple[str, RuleMode, float, float, float], ...] = ()
    seen: bytes = b""
    cpu_seconds: float = 0.0


class QuestionAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From the worker: the answer to a question.

    Attributes:
        number: The question's.
        status: 200, or the HTTP status of a refusal.
        document: The JSON document; empty for a refusal.
        message: Message of a refusal, as in ``GatewayError``.
        param: Parameter of a refusal.
        code: Error code of a refusal.
    """

    number: int
    status: int
    document: bytes
    message: str = ""
    param: str | None = None
    code: str | None = None


class Notice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From the worker: an error to log. Contains no text of a prompt.

    Attributes:
        event: The log event.
        fields: Fields of the event.
    """

    event: str
    fields: Mapping[str, str]


_OfRequests = RequestRecord | RepeatedRequest | NamedComparison
Work = _OfRequests | CacheEvent | ExperimentSample | Marker | SkippedTotals | PeerPrompts
ToWorker = WorkerOptions | StoredHistory | Work | Question
FromWorker = Ready | WorkReport | QuestionAnswer | Notice
Message = ToWorker | FromWorker

_TYPES: tuple[type, ...] = (
    WorkerOptions,
    StoredHistory,
    RequestRecord,
    RepeatedRequest,
    CacheEvent,
    ExperimentSample,
    Marker,
    SkippedTotals,
    PeerPrompts,
    NamedComparison,
    Question,
    Ready,
    WorkReport,
    QuestionAnswer,
    Notice,
)
_KINDS = {type_: kind for kind, type_ in enumerate(_TYPES)}
_WORK_KINDS = frozenset(_KINDS[type_] for type_ in get_args(Work))
_QUESTION_KIND = _KINDS[Question]
_HEADER = Struct("<IB")
_PLACE = bytes(_HEADER.size)

_encoder = msgspec.msgpack.Encoder()
_decoders: tuple[msgspec.msgpack.Decoder[Any], ...] = tuple(msgspec.msgpack.Decoder(type_) for type_ in _TYPES)


class RawMessage:
    """A received message, not yet decoded.

    Attributes:
        size: Bytes of the whole frame.
        is_work: Whether it is ``Work``.
        is_question: Whether it is a ``Question``.
    """

    __slots__ = ("_kind", "_payload", "is_question", "is_work", "size")

    def __init__(self, kind: int, payload: bytes) -> None:
        self._kind = kind
        self._payload = payload
        self.size = _HEADER.size + len(payload)
        self.is_work = kind in _WORK_KINDS
        self.is_question = kind == _QUESTION_KIND

    def decode(self) -> Message:
        """The message.

        Raises:
            msgspec.MsgspecError: It cannot be decoded.
        """
        decoded: Message = _decoders[self._kind].decode(self._payload)
        return decoded


class FrameSplitter:
    """Splits received bytes into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[RawMessage]:
        """The frames completed by these bytes."""
        self._data += data
        at, end = 0, len(self._data)
        while end - at >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._data, at)
            until = at + _HEADER.size + length
            if until > end:
                break
            yield RawMessage(kind, bytes(memoryview(self._data)[at + _HEADER.size : until]))
            at = until
        del self._data[:at]


def encode(message: Message, out: bytearray) -> int:
    """Append a message's frame; returns its size in bytes.

    Raises:
        Exception: it cannot be encoded; nothing was appended.
    """
    at = len(out)
    out += _PLACE
    try:
        _encoder.encode_into(message, out, at + _HEADER.size)
    except BaseException:
        del out[at:]
        raise
    size = len(out) - at
    _HEADER.pack_into(out, at, size - _HEADER.size, _KINDS[type(message)])
    return size
