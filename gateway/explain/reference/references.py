"""Keeps earlier requests, and chooses the one that a request is compared with.

Candidates are found by token ids (``token_index``): the latest request with the longest common beginning, and those
that have passages of the rest of the prompt; besides them the last requests of the session, and those with the same
first message. The choice is the first of: the request of the session with the longest common beginning; an earlier
turn of the conversation; the one with the same skeleton (the frame with numbers, dates and ids masked) and the longest
common beginning; the one with the most similar frame.

Texts are read only where token ids leave a question. Most prompts continue an earlier one, or have nothing in common
with any behind their common beginning.

A request is compared with those of its own model. Only a conversation that moved from another model is compared with
the turn that it continues there.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import msgspec
import numpy as np

from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.prompt_text import LEADING_ROLES, PROMPT_ROLE
from gateway.explain.reference.frame import Frame, Frames, are_similar, similarity
from gateway.explain.reference.kept_request import ChosenBy, KeptRequest, ReferenceMatch
from gateway.explain.reference.packed_ids import PackedIds, packed
from gateway.explain.reference.shared_texts import SharedTexts
from gateway.explain.reference.thread import Thread
from gateway.explain.reference.token_index import STEP_TOKENS, TokenHashes, TokenIndex

_SESSION_REQUESTS = 8
"""Number of the last requests of a session that are candidates: agents send several at a time."""

_CANDIDATES = 8
_HOLDERS = 64
"""Beginnings that are looked at, from the longest down, until one is found that may be compared."""

_SAME_TOKENS = 16
"""Common prefixes whose lengths differ by less count as equal: times differ in their last digits."""

_CONTINUED_CHARACTERS = 64
"""A completion's prompt of at least this length that is a prefix of another was continued there."""

_LARGEST_PART = 8
_MEMO_PART = 16
_INDEX_PART = 6
_REQUEST_BYTES = 2_300
"""Memory of a request with its keys and its list of digests, besides its parts."""

_REPLIES = 4


@dataclass
class _Entry:
    """A kept request.

    Attributes:
        kept: The request, without its ids.
        ids: Its ids.
        keys: As ``_Reading.keys``.
        before: Number of the turn that it continues; None if unknown.
        began_tokens: Length of the first known prompt of its conversation. A prompt with as much in common belongs to
            it.
        size: Bytes of its own data.
        texts: Holds its messages.
    """

    kept: KeptRequest
    ids: PackedIds
    keys: Sequence[int]
    before: int | None
    began_tokens: int
    size: int
    texts: SharedTexts

    @cached_property
    def thread(self) -> Thread:
        """Its messages."""
        return Thread(self.kept.text, self.kept.replies, self.texts.digests)


class _Reading:
    """A request that is compared, and kept afterwards. Its parts are read when they are needed first.

    Attributes:
        kept: The request.
        ids: Its ids.
        hashes: Their hashes. Those of main agents and of subagents differ: one is no change of the other.
        chosen: Number of the reference, and how it was chosen; None if it is not chosen yet.
        turn: Number of the turn that it continues; None if unknown.
    """

    def __init__(self, kept: KeptRequest, frames: Frames, texts: SharedTexts) -> None:
        self.kept = kept
        self.ids = packed(kept.ids)
        self.hashes = TokenHashes(kept.ids, hash((kept.tenant, kept.model, bool(kept.agent))))
        self.chosen: tuple[int | None, ChosenBy] | None = None
        self.turn: int | None = None
        self._frames, self._texts = frames, texts

    @cached_property
    def thread(self) -> Thread:
        """Its messages."""
        return Thread(self.kept.text, (), self._texts.digests)

    @cached_property
    def frame(self) -> Frame:
        """Its frame."""
        return self._frames.of(self.kept.text)

    @cached_property
    def session_key(self) -> int:
        """Key of the requests of an agent of a session."""
        return hash((self.kept.tenant, "session", self.kept.session, self.kept.agent))

    @cached_property
    def first_key(self) -> int | None:
        """Key of requests, to any model, with the same first message behind the leading ones; None without one."""
        kept = self.kept
        first = next((each for each in kept.text.messages if each.role not in LEADING_ROLES), None)
        return None if first is None else hash((kept.tenant, bool(kept.agent), first.role, first.text))

    @property
    def keys(self) -> list[int]:
        """Its keys in the index of References."""
        keys = [self.hashes.whole(self.ids.tokens)] if self.ids.tokens else []
        if self.kept.session:
            keys.append(self.session_key)
        return keys if self.first_key is None else [*keys, self.first_key]


class References:
    """Earlier requests, bounded in bytes and age. Requests of different tenants are never compared.

    Attributes:
        ttl_seconds: Maximum age.
    """

    def __init__(self, max_bytes: int, ttl_seconds: float, frames: Frames | None = None) -> None:
        """Keep at most ``max_bytes`` of texts, ids, replies and index; the oldest requests are dropped first.

        ``frames`` is a cache of frames shared with other components.
        """
        self._max_bytes = max_bytes
        self.ttl_seconds = ttl_seconds
        memo_bytes = max_bytes // _MEMO_PART
        self._index = TokenIndex(max_bytes // _INDEX_PART)
        self._budget_bytes = max_bytes - memo_bytes - self._index.nbytes
        self._frames = frames or Frames(memo_bytes)
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._entries_bytes = 0
        self._next = 0
        self._models: Counter[str] = Counter()
        self._by_key: dict[int, dict[int, None]] = {}
        self._texts = SharedTexts()
        self._last: _Reading | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the requests, without the index and the cache of masked lines, of a fixed size each."""
        return self._entries_bytes + self._texts.held_bytes

    def find(self, kept: KeptRequest, now: float) -> ReferenceMatch | None:
        """The earlier request to compare with; None if there is no similar one. ``now`` is Unix seconds."""
        self.expire(now)
        reading = self._read(kept)
        number, chosen_by = self._choose(reading)
        if number is None:
            return None
        entry = self._entries[number]
        equal = reading.ids.common_tokens(entry.ids)
        # What both have in common needs no unpacking.
        found = msgspec.structs.replace(entry.kept, ids=entry.ids.unpacked(kept.ids[: equal * TOKEN_BYTES]))
        return ReferenceMatch(found, chosen_by, chosen_by in ("session", "conversation"), equal)

    def numbered(self, number: int, kept: KeptRequest) -> ReferenceMatch | None:
        """The earlier request with a number, to compare with; None if it is not kept any more."""
        entry = self._entries.get(number)
        if entry is None:
            return None
        found = msgspec.structs.replace(entry.kept, ids=entry.ids.unpacked())
        return ReferenceMatch(found, "conversation", True, packed(kept.ids).common_tokens(entry.ids))

    def keep(self, kept: KeptRequest, now: float) -> int:
        """Keep a request for comparison with later ones, unless it is larger than an eighth of the memory.

        Only the last two turns of a conversation are kept: they contain the earlier ones.

        Returns:
            Its number; -1 if it is not kept.
        """
        self.expire(now)
        reading = self._read(kept)
        self._choose(reading)
        self._last = None
        text, ids, shared_bytes = self._texts.share(kept.text, reading.ids)
        held = msgspec.structs.replace(kept, text=text, ids=b"")
        size = _own_bytes(held, ids)
        if size + shared_bytes > self._max_bytes // _LARGEST_PART:
            self._texts.release(text, ids)
            return -1
        before = reading.turn if reading.turn in self._entries else None
        began_tokens, known = ids.tokens, 0
        if before is not None:
            earlier = self._entries[before]
            if self._is_beginning(earlier, reading):
                began_tokens, known = earlier.began_tokens, earlier.ids.tokens
            self._drop_earlier_turn(earlier, kept)
        number, self._next = self._next, self._next + 1
        keys = reading.keys
        self._entries[number] = _Entry(held, ids, keys, before, began_tokens, size, self._texts)
        self._entries_bytes += size
        self._models[kept.model] += 1
        for key in keys:
            self._by_key.setdefault(key, {})[number] = None
        self._index.add(reading.hashes, number, known)
        for reply in kept.replies[:_REPLIES]:
            if reply.ids:
                self._index.add(reading.hashes.followed_by(reply.ids), number, ids.tokens)
        while self.held_bytes > self._budget_bytes:
            self._drop(next(iter(self._entries)))
        return number

    # What is chosen

    def _choose(self, reading: _Reading) -> tuple[int | None, ChosenBy]:
        if reading.chosen is None:
            reading.chosen = self._by_ids(reading)
        return reading.chosen

    def _by_ids(self, reading: _Reading) -> tuple[int | None, ChosenBy]:
        """The choice, without the texts if the token ids leave no question."""
        kept = reading.kept
        session = self._latest(reading.session_key, kept, _SESSION_REQUESTS, any_model=True) if kept.session else []
        first = reading.first_key
        moved = first is not None and self._has_other_models(kept) and first in self._by_key
        beginning, holder = self._holder(reading)
        turns = self._turns(reading, beginning, holder)
        near = self._near_longest(reading, session)
        if len(turns) == 1 and not moved:
            of_session = near == turns if session else self._may_be_of_session(turns[0], kept)
            if of_session:
                reading.turn = turns[0]
                return turns[0], "session" if session else "conversation"
        others = self._with_passages(reading, 0 if holder is None else reading.ids.common_tokens(self._ids(holder)))
        if holder is not None and not (others or turns or moved) and (near == [holder] or not session):
            if session:
                return holder, "session"
            shares_turns = reading.ids.common_tokens(self._ids(holder)) >= self._entries[holder].began_tokens
            is_turn = shares_turns and self._may_be_of_session(holder, kept)
            return holder, "conversation" if is_turn else "beginning"
        numbers = [*turns, *others] if holder is None else [holder, *turns, *others]
        if first is not None:
            numbers += self._latest(first, kept, _CANDIDATES, any_model=True)
        number, chosen_by = self._by_text(reading, session, sorted(set(numbers), reverse=True))
        return self._with_more_computed(reading, number, chosen_by, holder)

    def _holder(self, reading: _Reading) -> tuple[int, int | None]:
        """The request that has the longest common beginning, the latest on a tie; and how long that is at least."""
        found = self._index.find(reading.hashes.beginnings)
        tried: set[int] = set()
        for at in np.flatnonzero(found >= 0)[::-1][:_HOLDERS].tolist():
            number = int(found[at])
            if number not in tried and self._may_be_compared(number, reading.kept):
                length = (at + 1) * STEP_TOKENS
                if reading.ids.common_tokens(self._ids(number)) >= length:
                    return length, number
            tried.add(number)
        return 0, None

    def _turns(self, reading: _Reading, beginning: int, holder: int | None) -> list[int]:
        """The requests whose whole prompt is the longest beginning of this one, latest first. Several sent the same."""
        for length in range(min(beginning + STEP_TOKENS - 1, reading.ids.tokens), max(beginning, 1) - 1, -1):
            if numbers := self._latest(reading.hashes.whole(length), reading.kept, _CANDIDATES):
                is_same = length == reading.ids.tokens
                return [self._preferred(numbers, reading.kept)] if is_same else list(numbers)
        before = None if holder is None else self._entries[holder].before
        numbers = [] if holder is None else [holder] if before is None else [holder, before]
        return [each for each in numbers if each in self._entries and self._is_beginning(self._entries[each], reading)][
            :1
        ]

    def _with_passages(self, reading: _Reading, start: int) -> list[int]:
        """The requests that have most passages of a prompt from a token on."""
        found = self._index.find(reading.hashes.passages[start:])
        numbers, times = np.unique(found[found >= 0], return_counts=True)
        ranked = numbers[np.lexsort((-numbers, -times))].tolist()
        return list(islice((each for each in ranked if self._may_be_compared(each, reading.kept)), _CANDIDATES))

    def _by_text(
        self, reading: _Reading, session: Sequence[int], numbers: Sequence[int]
    ) -> tuple[int | None, ChosenBy]:
        """The choice among some requests, latest first, by what they say."""
        kept = reading.kept
        own = [each for each in numbers if self._entries[each].kept.model == kept.model]
        alike = [each for each in own if self._has_same_frame(each, reading)]
        number = self._of_session(reading, session, alike)
        chosen_by: ChosenBy = "session"
        if number is None:
            number, chosen_by = self._of_conversation(reading, own), "conversation"
            moved = [
                each for each in numbers if each not in own and reading.thread.continues(self._entries[each].thread)
            ]
            number = max(
                [*([] if number is None else [number]), *moved],
                key=lambda each: (len(self._entries[each].thread.digests), each in own, each),
                default=None,
            )
        if number is not None:
            thread = self._entries[number].thread
            is_turn = reading.thread.continues(thread) or self._is_beginning(self._entries[number], reading)
            reading.turn = number if is_turn else None
            return number, chosen_by
        if alike:
            return self._with_longest_beginning(reading, alike), "skeleton"
        # Subagents of one style resemble each other: nothing that they have in common was changed.
        return None if kept.agent else self._most_similar(reading, own), "similar"

    def _of_session(self, reading: _Reading, numbers: Sequence[int], alike: Sequence[int]) -> int | None:
        """Of the last requests of the session, the one with the longest common prefix, the latest on a tie.

        None if all belong to other applications (agents call each other) and another request to this one.
        """
        kept, thread = reading.kept, reading.thread
        if self._has_other_models(kept):
            numbers = self._without_other_tasks(reading, numbers)
        are_related = any(
            self._has_same_frame(each, reading) or thread.common_messages(self._entries[each].thread)
            for each in numbers
        )
        if not numbers or (not are_related and alike):
            return None
        near = self._near_longest(reading, numbers)
        if len(near) == 1:
            return near[0]
        return max(
            near,
            key=lambda each: (
                self._has_similar_frame(each, reading),
                thread.common_messages(self._entries[each].thread),
                self._entries[each].kept.model == kept.model,
                each,
            ),
        )

    def _without_other_tasks(self, reading: _Reading, numbers: Sequence[int]) -> list[int]:
        """A session's requests without those of other models, but for turns that this request continues.

        The same prompt at a second model is that model's first one, unless the session has no request of it: then the
        conversation moved.
        """
        own = [each for each in numbers if self._entries[each].kept.model == reading.kept.model]
        thread = reading.thread
        if own:
            return [each for each in numbers if each in own or thread.continues(self._entries[each].thread)]
        return [
            each
            for each in numbers
            if thread.common_messages(self._entries[each].thread)
            or not (thread.digests or not self._has_same_frame(each, reading))
        ]

    def _of_conversation(self, reading: _Reading, numbers: Iterable[int]) -> int | None:
        """An earlier turn of the same conversation: continued here, a branch, or trimmed at the front."""
        best, best_rank = None, (-1, 0, False)
        for number in numbers:
            rank = self._conversation_rank(reading, number)
            if rank is not None:
                ranked = *rank, self._entries[number].kept.source == reading.kept.source
                if ranked > best_rank:
                    best, best_rank = number, ranked
        return best

    def _conversation_rank(self, reading: _Reading, number: int) -> tuple[int, int] | None:
        """How near a request is to this one in their conversation; None if they belong to different ones.

        A turn that is continued here, with its reply, comes before one without; both before a branch, which only shares
        messages in front, unless it shares two more of them; and all before a history that was trimmed at the front.
        """
        entry, thread = self._entries[number], reading.thread
        earlier, of_session = entry.thread, self._may_be_of_session(number, reading.kept)
        if not thread.digests:
            return (1, len(entry.kept.text.messages[0].text)) if self._is_continued_prompt(reading, entry) else None
        common = thread.common_messages(earlier)
        if common and common == len(earlier.digests):
            if thread.answers(earlier) and self._is_of_application(reading, number, 0, common + 1):
                return 1, 2 * common + 6
            is_of_it = self._has_same_frame(number, reading) if common == 1 else True
            if of_session and is_of_it and self._is_of_application(reading, number, 0, common):
                return 1, 2 * common + 3
        elif (
            common > 1
            and entry.before is not None
            and of_session
            and self._is_of_application(reading, number, 0, common)
        ):
            return 1, 2 * common
        tail = thread.end_of(earlier)
        if tail is not None and of_session and self._is_of_application(reading, number, *tail):
            return 0, tail[0]
        return None

    def _is_continued_prompt(self, reading: _Reading, entry: _Entry) -> bool:
        """For completions: whether a prompt is the beginning of this one."""
        messages, earlier = reading.kept.text.messages, entry.kept.text.messages
        if not messages or not earlier or messages[0].role != PROMPT_ROLE or earlier[0].role != PROMPT_ROLE:
            return False
        return len(earlier[0].text) >= _CONTINUED_CHARACTERS and messages[0].text.startswith(earlier[0].text)

    def _is_of_application(self, reading: _Reading, number: int, begin: int, end: int) -> bool:
        """Whether common messages, from one to another, belong to one conversation: those of two applications may both
        begin with a greeting."""
        return reading.thread.is_distinctive(begin, end) or self._has_similar_frame(number, reading)

    def _with_longest_beginning(self, reading: _Reading, numbers: Sequence[int]) -> int:
        """The request with the longest common prefix: of the same source first, then the latest."""
        return self._preferred(sorted(self._near_longest(reading, numbers), reverse=True), reading.kept)

    def _near_longest(self, reading: _Reading, numbers: Sequence[int]) -> list[int]:
        """The requests with the longest common prefix, give or take a few tokens."""
        equal = {each: reading.ids.common_tokens(self._ids(each)) for each in numbers}
        longest = max(equal.values(), default=0)
        return [each for each in numbers if equal[each] > longest - _SAME_TOKENS]

    def _most_similar(self, reading: _Reading, numbers: Iterable[int]) -> int | None:
        best, best_share = None, 0.0
        for number in numbers:
            share = self._similarity(number, reading)
            if share > best_share:
                best, best_share = number, share
        return best

    def _with_more_computed(
        self, reading: _Reading, number: int | None, chosen_by: ChosenBy, holder: int | None
    ) -> tuple[int | None, ChosenBy]:
        """The choice, unless an engine may have computed more of the prompt for the request that shares most of it."""
        if number is None or holder is None:
            return number, chosen_by
        near = self._near_longest(reading, [number, holder])
        if number in near or not self._has_similar_frame(holder, reading):
            return number, chosen_by
        is_turn = reading.thread.common_messages(self._entries[holder].thread) >= len(
            self._entries[number].thread.digests
        )
        return holder, chosen_by if is_turn else "skeleton"

    # What is compared

    def _may_be_compared(self, number: int, kept: KeptRequest) -> bool:
        """Whether a request is kept, and of the same tenant, model and agent. A subagent's prompt is no change of that
        of a main agent, or of another one of its session."""
        entry = self._entries.get(number)
        return entry is not None and entry.kept.model == kept.model and _is_of_agent(entry.kept, kept)

    def _may_be_of_session(self, number: int, kept: KeptRequest) -> bool:
        return not kept.session or self._entries[number].kept.session in ("", kept.session)

    def _is_beginning(self, entry: _Entry, reading: _Reading) -> bool:
        """Whether a whole prompt is the beginning of this one."""
        return 0 < entry.ids.tokens == reading.ids.common_tokens(entry.ids)

    def _ids(self, number: int) -> PackedIds:
        return self._entries[number].ids

    def _has_same_frame(self, number: int, reading: _Reading) -> bool:
        return self._frames.of(self._entries[number].kept.text).skeleton == reading.frame.skeleton

    def _has_similar_frame(self, number: int, reading: _Reading) -> bool:
        return self._has_same_frame(number, reading) or self._similarity(number, reading) > 0

    def _similarity(self, number: int, reading: _Reading) -> float:
        """How similar the frame of a request is, 0 to 1; 0 if it is of another application."""
        mine, other = reading.frame, self._frames.of(self._entries[number].kept.text)
        if mine.is_opening != other.is_opening:
            return 0.0
        share = similarity(mine.features, other.features)
        if are_similar(len(mine.features & other.features), share, mine.is_opening):
            return share
        # Below the share of any similar one.
        return 0.01 if not set(mine.beginnings).isdisjoint(other.beginnings) else 0.0

    def _has_other_models(self, kept: KeptRequest) -> bool:
        return len(self._models) > (kept.model in self._models)

    def _latest(self, key: int, kept: KeptRequest, count: int, *, any_model: bool = False) -> list[int]:
        """The last requests of a key that may be compared, latest first."""
        return [
            number
            for number in islice(reversed(self._by_key.get(key, {})), count)
            if (any_model or self._entries[number].kept.model == kept.model)
            and _is_of_agent(self._entries[number].kept, kept)
        ]

    def _preferred(self, numbers: Sequence[int], kept: KeptRequest) -> int:
        """The best of some candidates, latest first: of the same source first, then the latest."""
        return next((each for each in numbers if self._entries[each].kept.source == kept.source), numbers[0])

    # What is kept

    def _read(self, kept: KeptRequest) -> _Reading:
        last = self._last
        # ``find`` and then ``keep`` read the same request.
        if last is None or last.kept.text is not kept.text or last.kept.request_id != kept.request_id:
            last = self._last = _Reading(kept, self._frames, self._texts)
        return last

    def _drop_earlier_turn(self, last: _Entry, kept: KeptRequest) -> None:
        before = None if last.before is None else self._entries.get(last.before)
        if before is not None and last.before is not None and _line(before.kept) == _line(last.kept) == _line(kept):
            self._drop(last.before)

    def expire(self, now: float) -> None:
        """Drop requests older than the TTL; ``now`` is Unix seconds."""
        while self._entries:
            number = next(iter(self._entries))
            if self._entries[number].kept.at >= now - self.ttl_seconds:
                return
            self._drop(number)

    def forget_session(self, tenant: str, conversation: str) -> None:
        """Drop the requests of a session, of all its agents."""
        kept = self._entries.items()
        for number in [n for n, each in kept if (each.kept.tenant, each.kept.conversation) == (tenant, conversation)]:
            self._drop(number)

    def forget_readings(self) -> None:
        """Drop what is remembered of prompts that are not kept any more; it is worked out again when needed."""
        self._last = None
        self._frames.forget_texts()

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        self._entries_bytes -= entry.size
        self._models[entry.kept.model] -= 1
        if not self._models[entry.kept.model]:
            del self._models[entry.kept.model]
        self._texts.release(entry.kept.text, entry.ids)
        for key in entry.keys:
            numbers = self._by_key[key]
            del numbers[number]
            if not numbers:
                del self._by_key[key]


def _is_of_agent(earlier: KeptRequest, kept: KeptRequest) -> bool:
    if earlier.tenant != kept.tenant:
        return False
    return earlier.agent == kept.agent or bool(earlier.agent and kept.agent and earlier.session != kept.session)


def _line(kept: KeptRequest) -> tuple[str, ...]:
    """What the turns of a conversation share, unless it changed; a turn before a change is kept."""
    return kept.session, kept.agent, kept.model, kept.source


def _own_bytes(kept: KeptRequest, ids: PackedIds) -> int:
    """Memory of a request besides its messages, its tools and the pieces of its ids."""
    parts = len(kept.text.messages) + len(kept.text.tools) + len(ids.pieces)
    size = _REQUEST_BYTES + len(kept.session) + len(kept.agent) + len(kept.conversation) + 8 * parts
    for reply in kept.replies:
        size += 2 * len(reply.text or "") + len(reply.ids or b"") + 200
    for name, value in kept.text.arguments.items():
        size += len(name) + 2 * len(value) + 100
    return size
