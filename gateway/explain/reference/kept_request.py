"""A request as it is kept for comparison, as it is read when it is compared, and what is found for it.

A kept request is its body and its token ids, unread. Its text is read when a later one has to be compared with it.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.core.explanation import ReplyChoice, RequestRecord, SpaceKey
from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.bodies import Bodies
from gateway.explain.prompt_text import PromptText
from gateway.explain.reference.frame import Frame, Frames
from gateway.explain.reference.thread import Thread
from gateway.explain.reference.token_index import Hashes, beginnings, passages

_OPENING_BYTES = 700
_MESSAGES = b'"messages"'
_DIGITS = b"0123456789"
_NO_TEXT = PromptText(())

_STEP_TOKENS = 16
"""Beginnings are found up to a multiple of this, or of a block where blocks are larger."""

ChosenBy = Literal["session", "conversation", "skeleton", "similar", "beginning"]


class KeptRequest(msgspec.Struct, frozen=True):
    """A request kept for comparison.

    Attributes:
        request_id: Its id.
        at: End of the request, Unix seconds.
        tenant: Id of the tenant; requests of different tenants are never compared.
        model: Id of the model.
        source: Client family.
        session: Session named by the client, if that is one conversation; empty for none.
        where: Its prefix space.
        endpoint: Path of the request.
        body: Its body, JSON.
        ids: The prompt's token ids, little-endian u32.
        bodies: Reads bodies.
        chains: Block hashes of the ids followed by each reply's; of the ids alone without replies.
        block_size: Tokens per block.
        opening: As in ``RequestRecord``.
        turn: Likewise.
        replies: Replies of the engine.
        agent: The subagent that sent it; empty for the main one.
        conversation: As in ``Explanation``.
        record: What else is known of it; None if rules cannot be tried on it.
    """

    request_id: str
    at: float
    tenant: str
    model: str
    source: str
    session: str
    where: SpaceKey
    endpoint: str
    body: bytes
    ids: bytes
    bodies: Bodies
    chains: "tuple[array[int], ...]" = ()
    block_size: int = 16
    opening: int = 0
    turn: int = 0
    replies: tuple[ReplyChoice, ...] = ()
    agent: str = ""
    conversation: str = ""
    record: RequestRecord | None = None

    @property
    def text(self) -> PromptText:
        """Its prompt; without parts if its body cannot be read."""
        return self.bodies.text(self.endpoint, self.body) or _NO_TEXT


class ReferenceMatch(msgspec.Struct, frozen=True):
    """The earlier request to compare with.

    Attributes:
        number: Its number.
        reference: The earlier request.
        chosen_by: What both have in common.
        same_conversation: Whether both belong to one conversation, so a difference is an edit of its history.
        equal: Length of the common prefix of both prompts, in tokens.
        is_rest_new: Whether it is known that nothing behind the common prefix stands in the reference as well.
        is_turn: Whether the request begins with the whole reference, and continues its conversation.
    """

    number: int
    reference: KeptRequest
    chosen_by: ChosenBy
    same_conversation: bool
    equal: int
    is_rest_new: bool = False
    is_turn: bool = False


Choice = tuple[int | None, ChosenBy]
"""The number of a request, None for none, and how it was chosen."""


@dataclass(slots=True)
class KeptEntry:
    """A kept request. The turn that follows it holds nearly the same bytes: it shares them.

    Attributes:
        kept: The request, without its ids and body.
        held_ids: Its ids, perhaps with more behind them.
        held_body: Its body, or another one that begins alike.
        body_begins: Bytes of ``held_body`` that its body begins with.
        body_ends: The rest of its body.
        tokens: Number of its ids.
        keys: As ``PromptReading.keys``.
        before: Number of the turn that it continues; None if unknown.
        began_tokens: Length of the first known prompt of its conversation. A prompt with as much in common belongs to
            it.
        size: Bytes of its own data.
    """

    kept: KeptRequest
    held_ids: bytes
    held_body: bytes
    body_begins: int
    body_ends: bytes
    tokens: int
    keys: Sequence[int]
    before: int | None
    began_tokens: int
    size: int

    @property
    def ids(self) -> bytes:
        """Its ids."""
        return self.held_ids[: self.tokens * TOKEN_BYTES]

    @property
    def whole(self) -> KeptRequest:
        """The request."""
        body = self.held_body[: self.body_begins] + self.body_ends if self.body_ends else self.held_body
        return msgspec.structs.replace(self.kept, ids=self.ids, body=body)


class PromptReading:
    """A request that is compared, and kept afterwards. Its parts are read when they are needed first.

    Attributes:
        kept: The request.
        tokens: Number of its ids.
        owner: Separates requests that are never compared by their ids: those of main agents and of subagents, too.
        written: Its ids and those of its first reply.
        step_tokens: Its beginnings are multiples of so many tokens.
        chosen: Number of the reference, and how it was chosen; None if it is not chosen yet.
        turn: Number of the turn that it continues; None if unknown.
        is_rest_new: Whether nothing behind the common beginning stands in the reference as well.
    """

    def __init__(self, kept: KeptRequest, frames: Frames) -> None:
        self.kept = kept
        self.tokens = len(kept.ids) // TOKEN_BYTES
        # The same in every process: which passages are written follows from it.
        self.owner = xxh3_64_intdigest(f"{kept.tenant}\0{kept.model}\0{bool(kept.agent)}".encode("utf-8", "replace"))
        self.written = kept.ids + ((kept.replies[0].ids or b"") if kept.replies else b"")
        self._step = max(_STEP_TOKENS // kept.block_size, 1)
        self.step_tokens = self._step * kept.block_size
        self.chosen: Choice | None = None
        self.turn: int | None = None
        self.is_rest_new = False
        self._passages: tuple[int, Hashes] | None = None
        self._frames = frames

    @cached_property
    def beginnings(self) -> Sequence[Hashes]:
        """The beginnings of its ids followed by each reply's."""
        return [beginnings(chain, self.owner, self._step) for chain in self.kept.chains]

    def passages(self, start: int) -> Hashes:
        """The passages of ``written`` from a token on."""
        if self._passages is None or self._passages[0] > start:
            self._passages = start, passages(self.written[start * TOKEN_BYTES :], self.owner)
        return self._passages[1][start - self._passages[0] :]

    @cached_property
    def thread(self) -> Thread:
        """Its messages."""
        return Thread(self.kept.text)

    @cached_property
    def frame(self) -> Frame:
        """Its frame."""
        return self._frames.of(self.kept.text)

    @cached_property
    def whole_key(self) -> int:
        """Key of requests with the same ids."""
        return xxh3_64_intdigest(self.kept.ids, self.owner)

    @cached_property
    def session_key(self) -> int | None:
        """Key of the requests of an agent of a session; None without one."""
        kept = self.kept
        return hash((kept.tenant, "session", kept.session, kept.agent)) if kept.session else None

    @cached_property
    def first_key(self) -> int | None:
        """Key of requests, to any model, with the same first message behind the leading ones; None without one."""
        kept = self.kept
        return hash((kept.tenant, bool(kept.agent), kept.opening)) if kept.opening else None

    @cached_property
    def opening_key(self) -> int | None:
        """Key of requests to the model whose messages begin with the same words, but for digits; None without text."""
        body = self.kept.body
        start = max(body.find(_MESSAGES), 0)
        opening = body[start : start + _OPENING_BYTES].translate(None, _DIGITS)
        return xxh3_64_intdigest(opening, self.owner) if opening else None

    @property
    def keys(self) -> list[int]:
        """Its keys in the index of References."""
        keys = self.whole_key, self.session_key, self.first_key, self.opening_key
        return [key for key in keys if key is not None]
