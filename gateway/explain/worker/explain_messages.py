"""What the gateway and the process that explains say to each other.

Over a socket pair, in frames: four bytes of length (little-endian, of the payload), one byte that says which of the
messages below it is, and the message as MessagePack. Both ends run the same code, so there are no versions.

Messages about requests are *work*: they are handled in their order, and what became of them is told by ``Counted``.
"""

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any, Literal

import msgspec

from gateway.core.canonical import RuleMode
from gateway.core.explanation import CacheEvent, RequestRecord
from gateway.core.reasons import Reason


class ModelOptions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a model's prompts become tokens.

    Attributes:
        tokenizer: As in ``ModelSettings``; not ``engine``.
        chat_template: Text of the chat template, where it is not the tokenizer's own.
        template_arguments: Default variables of the template, JSON.
        content_format: ``string`` or ``openai``; None finds it out.
    """

    tokenizer: str
    chat_template: str | None = None
    template_arguments: bytes = b"{}"
    content_format: Literal["string", "openai"] | None = None


class CanonOptions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What rules are, and what it takes to try them.

    Attributes:
        settings: ``CanonSettings`` as JSON.
        models: By id; those that only the engine has tokens for are missing.
    """

    settings: bytes
    models: Mapping[str, ModelOptions]


class WorkerOptions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """To the child, first of all and when they change: what it goes by.

    Attributes:
        max_waiting_bytes: What may wait to be explained, over all messages.
        journal_requests: As in ``ExplainSettings``.
        journal_ttl_seconds: Likewise.
        reference_bytes: For earlier prompts.
        reference_ttl_seconds: As in ``ExplainSettings``.
        seen_blocks: Likewise.
        gpu_hour_price: Likewise.
        currency: Likewise.
        gpus: GPUs of a replica, by model; 1 where it is not said.
        canon: For telling what rules save; None: that is not worked out.
        tells: Whether other gateways are told what was computed for this one.
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
    tells: bool = False


class SkippedTotals(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """To the child, work: the sum of requests that nobody looked at. Their missed tokens have been counted already.

    Attributes:
        model: Id of their model.
        tenant: Id of their tenant.
        tenant_label: Value of the metrics' ``tenant`` label.
        source: Their client family.
        template: Their template version.
        hits_confirmed: Whether their engine reported their hits.
        at: When the last one was over, Unix seconds.
        requests: How many they are.
        prompt_tokens: Theirs.
        hits: Theirs.
        prefill_seconds: What their prompts would have taken to compute from nothing.
    """

    model: str
    tenant: str
    tenant_label: str
    source: str
    template: str
    hits_confirmed: bool
    at: float
    requests: int
    prompt_tokens: int
    hits: int
    prefill_seconds: float


class PeerPrompts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """To the child, work: what another gateway tells that was computed for it.

    Attributes:
        at: When it was heard, Unix seconds.
        told: ``Counted.told`` of its child, or several of them.
    """

    at: float
    told: tuple[bytes, ...]


class Question(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """To the child: as ``ExplainDesk.ask``; ``number`` stands in the answer, ``others`` is as in ``Stats.answer``."""

    number: int
    question: str
    arguments: Mapping[str, str]
    others: tuple[bytes, ...] | None = ()


class Ready(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From the child: it has its terms and begins."""


class Counted(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From the child: some more work is done.

    Attributes:
        handled: How many messages, since it was last told.
        unread: Which of them could not be decoded, from 0.
        missed: Tokens by model, tenant label and reason.
        canonical: Edits, saved and lost tokens, by rule and mode.
        told: What other gateways should know was computed, as a ``SeenPublisher`` gives it; empty for nothing.
    """

    handled: int
    unread: tuple[int, ...]
    missed: tuple[tuple[str, str, Reason, int], ...]
    canonical: tuple[tuple[str, RuleMode, int, int, int], ...] = ()
    told: bytes = b""


class QuestionAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From the child: the answer to a question.

    Attributes:
        number: The question's.
        status: 200, or the HTTP status of a refusal.
        document: The JSON document; empty for a refusal.
        message: A refusal's, as in ``GatewayError``.
        param: Likewise.
        code: Likewise.
    """

    number: int
    status: int
    document: bytes
    message: str = ""
    param: str | None = None
    code: str | None = None


class Notice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """From the child: something for the log, as an error. Holds no text of a prompt.

    Attributes:
        event: The log event.
        fields: What it says besides.
    """

    event: str
    fields: Mapping[str, str]


Work = RequestRecord | CacheEvent | SkippedTotals | PeerPrompts
ToChild = WorkerOptions | Work | Question
FromChild = Ready | Counted | QuestionAnswer | Notice
Message = ToChild | FromChild

_TYPES: tuple[type, ...] = (
    WorkerOptions,
    RequestRecord,
    CacheEvent,
    SkippedTotals,
    PeerPrompts,
    Question,
    Ready,
    Counted,
    QuestionAnswer,
    Notice,
)
_KINDS = {type_: kind for kind, type_ in enumerate(_TYPES)}
_WORK_KINDS = frozenset(_KINDS[type_] for type_ in (RequestRecord, CacheEvent, SkippedTotals, PeerPrompts))
_QUESTION_KIND = _KINDS[Question]
_HEADER = Struct("<IB")
_PLACE = bytes(_HEADER.size)

_encoder = msgspec.msgpack.Encoder()
_decoders: tuple[msgspec.msgpack.Decoder[Any], ...] = tuple(msgspec.msgpack.Decoder(type_) for type_ in _TYPES)


class RawMessage:
    """A message that came in, not yet decoded.

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

    def message(self) -> Message:
        """The message.

        Raises:
            msgspec.MsgspecError: it is none.
        """
        decoded: Message = _decoders[self._kind].decode(self._payload)
        return decoded


class MessageSplitter:
    """Cuts what comes in into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[RawMessage]:
        """The frames that are complete with these bytes."""
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


def pack(message: Message, out: bytearray) -> int:
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
