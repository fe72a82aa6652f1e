"""A request as it is kept for comparison, as it is read when it is compared, and what is found for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
from xxhash import xxh3_64_intdigest

from gateway.core.explanation import ReplyChoice, SpaceKey
from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.prompt_text import LEADING_ROLES, PromptText
from gateway.explain.reference.frame import Frame, Frames
from gateway.explain.reference.shared_texts import SharedTexts
from gateway.explain.reference.thread import Thread
from gateway.explain.reference.token_index import Beginnings, Hashes, passages

_OPENING_CHARACTERS = 600
_NO_DIGITS = str.maketrans("", "", "0123456789")

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
        text: Its prompt.
        ids: The prompt's token ids, little-endian u32.
        replies: Replies of the engine.
        agent: The subagent that sent it; empty for the main one.
        conversation: As in ``Explanation``.
    """

    request_id: str
    at: float
    tenant: str
    model: str
    source: str
    session: str
    where: SpaceKey
    text: PromptText
    ids: bytes
    replies: tuple[ReplyChoice, ...] = ()
    agent: str = ""
    conversation: str = ""


class ReferenceMatch(msgspec.Struct, frozen=True):
    """The earlier request to compare with.

    Attributes:
        reference: The earlier request.
        chosen_by: What both have in common.
        same_conversation: Whether both belong to one conversation, so a difference is an edit of its history.
        equal: Length of the common prefix of both prompts, in tokens.
        is_rest_new: Whether it is known that nothing behind the common prefix stands in the reference as well.
    """

    reference: KeptRequest
    chosen_by: ChosenBy
    same_conversation: bool
    equal: int
    is_rest_new: bool = False


Choice = tuple[int | None, ChosenBy]
"""The number of a request, None for none, and how it was chosen."""


@dataclass
class KeptEntry:
    """A kept request.

    Attributes:
        kept: The request, without its ids.
        buffer: Its ids, perhaps with those of the turn that follows: both hold the same bytes.
        tokens: Number of its ids.
        total: ``Beginnings.total`` of them.
        keys: As ``PromptReading.keys``.
        before: Number of the turn that it continues; None if unknown.
        began_tokens: Length of the first known prompt of its conversation. A prompt with as much in common belongs to
            it.
        size: Bytes of its own data.
        texts: Holds its messages.
        owns_ids: Whether ``size`` has the bytes of ``buffer``, of which others may hold the same object.
    """

    kept: KeptRequest
    buffer: bytes
    tokens: int
    total: int
    keys: Sequence[int]
    before: int | None
    began_tokens: int
    size: int
    texts: SharedTexts
    owns_ids: bool = True

    @property
    def ids(self) -> bytes:
        """Its ids."""
        return self.buffer[: self.tokens * TOKEN_BYTES]

    @cached_property
    def thread(self) -> Thread:
        """Its messages."""
        return Thread(self.kept.text, self.kept.replies, self.texts.digests)


class PromptReading:
    """A request that is compared, and kept afterwards. Its parts are read when they are needed first.

    Attributes:
        kept: The request.
        tokens: Number of its ids.
        owner: Separates requests that are never compared by their ids: those of main agents and of subagents, too.
        chosen: Number of the reference, and how it was chosen; None if it is not chosen yet.
        turn: Number of the turn that it continues; None if unknown.
        is_rest_new: Whether nothing behind the common beginning stands in the reference as well.
    """

    def __init__(self, kept: KeptRequest, frames: Frames, texts: SharedTexts) -> None:
        self.kept = kept
        self.tokens = len(kept.ids) // TOKEN_BYTES
        # The same in every process: which passages are written follows from it.
        self.owner = xxh3_64_intdigest(f"{kept.tenant}\0{kept.model}\0{bool(kept.agent)}".encode("utf-8", "replace"))
        self.chosen: Choice | None = None
        self.turn: int | None = None
        self.is_rest_new = False
        self._passages: tuple[int, Hashes] | None = None
        self._frames, self._texts = frames, texts

    @cached_property
    def beginnings(self) -> Beginnings:
        """Its beginnings."""
        return Beginnings(self.kept.ids, self.owner)

    def passages(self, start: int) -> Hashes:
        """Its passages from a token on."""
        if self._passages is None or self._passages[0] > start:
            self._passages = start, passages(self.kept.ids[start * TOKEN_BYTES :], self.owner)
        return self._passages[1][start - self._passages[0] :]

    @cached_property
    def thread(self) -> Thread:
        """Its messages."""
        return Thread(self.kept.text, (), self._texts.digests)

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
        first = next((each for each in kept.text.messages if each.role not in LEADING_ROLES), None)
        return None if first is None else hash((kept.tenant, bool(kept.agent), first.role, first.text))

    @cached_property
    def opening_key(self) -> int | None:
        """Key of requests to the model whose text begins with the same words, but for digits; None without text."""
        kept = self.kept
        opening = kept.text.messages[0].text[:_OPENING_CHARACTERS].translate(_NO_DIGITS) if kept.text.messages else ""
        return hash((self.owner, opening)) if opening else None

    @property
    def keys(self) -> list[int]:
        """Its keys in the index of References."""
        keys = self.whole_key, self.session_key, self.first_key, self.opening_key
        return [key for key in keys if key is not None]
