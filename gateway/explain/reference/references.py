"""Keeps earlier requests, and chooses the one that a request is compared with.

The choice is the first of: the last request of the same session; an earlier turn of the same conversation; the last
request with the same skeleton (the frame with numbers, dates and ids masked); the one with the most similar frame. If
more of the prompt was computed before than stands in that one, it is replaced by the request that shares most.

A request is compared with those of its own model. Only a conversation that moved from another model is compared with
the turn that it continues there.
"""

from collections import Counter, OrderedDict
from typing import Literal

import msgspec

from gateway.core.prompt import TOKEN_BYTES
from gateway.explain.bodies import TextMemo
from gateway.explain.prompt_text import PROMPT_ROLE
from gateway.explain.reference.frame import Frames
from gateway.explain.reference.known import NOTHING_KNOWN, Known
from gateway.explain.reference.packed_ids import PackedIds, packed
from gateway.explain.reference.prompt_reading import (
    KeptEntry,
    PromptReading,
    beginning_keys,
    line,
    narrower,
    own_bytes,
    same_key,
    session_key,
)
from gateway.explain.reference.reference_index import (
    POSTING_BYTES,
    ChosenBy,
    Groups,
    KeptRequest,
    Postings,
    ReferenceMatch,
)
from gateway.explain.reference.shared_texts import SharedTexts

_SESSION_REQUESTS = 8
"""Number of the last requests of a session that are candidates: agents send several at a time."""

_CANDIDATES = 8
_SAME_TOKENS = 16
"""Common prefixes whose lengths differ by less count as equal: times differ in their last digits."""

_PROMPTS = 32
"""Number of completions with the same beginning that are candidates for the continued one."""

_CONTINUED_CHARACTERS = 64
"""A completion's prompt of at least this length that is a prefix of another was continued there."""

_LARGEST_PART = 8
_MEMO_PART = 16
_READINGS_PART = 32
_NUMBER_BYTES = 40
_NO_IDS = packed(b"")

_Models = Literal["own", "other", "any"]
"""Which requests are candidates: those of the request's model, of other models, or all."""


class References:
    """Earlier requests, bounded in bytes and age. Requests of different tenants are never compared.

    Attributes:
        ttl_seconds: Maximum age.
    """

    def __init__(self, max_bytes: int, ttl_seconds: float, frames: Frames | None = None) -> None:
        """Keep at most ``max_bytes`` of texts, ids, replies and index keys; the oldest requests are dropped first.

        ``frames`` is a cache of frames shared with other components.
        """
        self._max_bytes = max_bytes
        self.ttl_seconds = ttl_seconds
        memo_bytes = max_bytes // _MEMO_PART
        self._budget_bytes = max_bytes - memo_bytes
        self._frames = frames or Frames(memo_bytes)
        self._entries: OrderedDict[int, KeptEntry] = OrderedDict()
        self._entries_bytes = 0
        self._next = 0
        self._models: Counter[str] = Counter()
        self._postings = Postings()
        self._groups = Groups()
        self._texts = SharedTexts()
        self._last_read: PromptReading | None = None
        self._last_packed = b"", _NO_IDS
        self._readings: TextMemo[PromptReading] = TextMemo(max_bytes // _READINGS_PART)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the requests, without the cache of masked lines, which takes up to a sixteenth more."""
        return self._entries_bytes + self._texts.held_bytes + self._groups.held_bytes

    def find(self, kept: KeptRequest, now: float, known: Known = NOTHING_KNOWN) -> ReferenceMatch | None:
        """The earlier request to compare with; None if there is no similar one.

        Args:
            kept: The request.
            now: Unix seconds.
            known: How much of its prompt was computed before.
        """
        self.expire(now)
        reading = self._read(kept)
        number, chosen_by = self._choose(kept, reading)
        if number is None:
            return None
        ids = self._packed(kept.ids)
        equal = ids.common_tokens(self._entries[number].ids)
        if known.tokens and known.exceeds(equal, ids.tokens):
            number, chosen_by, equal = self._sharing_most(kept, reading, number, chosen_by, equal)
        entry = self._entries[number]
        # What both have in common needs no unpacking.
        found = msgspec.structs.replace(entry.kept, ids=entry.ids.unpacked(kept.ids[: equal * TOKEN_BYTES]))
        return ReferenceMatch(found, chosen_by, chosen_by in ("session", "conversation"), equal)

    def numbered(self, number: int, kept: KeptRequest) -> ReferenceMatch | None:
        """The earlier request with a number, to compare with; None if it is not kept any more."""
        entry = self._entries.get(number)
        if entry is None:
            return None
        ids = self._packed(kept.ids)
        found = msgspec.structs.replace(entry.kept, ids=entry.ids.unpacked())
        return ReferenceMatch(found, "conversation", True, ids.common_tokens(entry.ids))

    def keep(self, kept: KeptRequest, now: float) -> int:
        """Keep a request for comparison with later ones, unless it is larger than an eighth of the memory.

        Only the last two turns of a conversation are kept: they contain the earlier ones.

        Returns:
            Its number; -1 if it is not kept.
        """
        self.expire(now)
        reading = self._read(kept)
        self._last_read = None
        text, ids, shared_bytes = self._texts.share(kept.text, self._packed(kept.ids))
        self._last_packed = b"", _NO_IDS
        held = msgspec.structs.replace(kept, text=text, ids=b"")
        bytes_of_request = own_bytes(held, ids)
        if bytes_of_request + shared_bytes > self._max_bytes // _LARGEST_PART:
            self._texts.release(text, ids)
            return -1
        before = self._continued(kept, reading)
        keys = tuple(set(self._keys(kept, reading, continues=before is not None)))
        size = bytes_of_request + POSTING_BYTES * len(keys) + _NUMBER_BYTES * len(reading.thread.digests)
        if before is not None:
            self._drop_earlier_turn(before, kept)
        number, self._next = self._next, self._next + 1
        self._entries[number] = KeptEntry(held, ids, reading.group, keys, reading.thread.digests, before, size)
        self._entries_bytes += size
        self._models[kept.model] += 1
        self._postings.add(keys, number)
        if reading.group is not None and reading.group not in self._groups:
            self._groups.add(reading.group, reading.features)
        while self.held_bytes > self._budget_bytes:
            self._drop(next(iter(self._entries)))
        return number

    def _choose(self, kept: KeptRequest, reading: PromptReading) -> tuple[int | None, ChosenBy]:
        number = self._of_session(kept, reading) if kept.session else None
        if number is not None:
            return number, "session"
        number = self._of_conversation(kept, reading)
        if self._has_other_models(kept):
            number = self._longer(number, self._continued(kept, reading, "other"))
        if number is not None:
            return number, "conversation"
        number = self._of_group(kept, reading.group)
        if number is not None:
            return number, "skeleton"
        # Subagents of one style resemble each other: nothing that they have in common was changed.
        return None if kept.agent else self._similar(kept, reading), "similar"

    def _has_other_models(self, kept: KeptRequest) -> bool:
        return len(self._models) > (kept.model in self._models)

    def _longer(self, number: int | None, moved: int | None) -> int | None:
        """Of the turns on the request's model and on another the one with more messages, the own model's on a tie."""
        if number is None or moved is None:
            return moved if number is None else number
        return moved if len(self._entries[moved].digests) > len(self._entries[number].digests) else number

    def _sharing_most(
        self, kept: KeptRequest, reading: PromptReading, number: int, chosen_by: ChosenBy, equal: int
    ) -> tuple[int, ChosenBy, int]:
        """The candidate with the longest common prefix, if it is longer than the ``equal`` tokens of ``number``; and
        that length."""
        best, ids = number, self._packed(kept.ids)
        for each in self._sharing_much(kept, reading):
            # Few candidates share more than the best one so far: the others need one look.
            if self._entries[each].ids.may_begin_like(ids, equal + 1):
                shared = ids.common_tokens(self._entries[each].ids)
                if shared > equal:
                    best, equal = each, shared
        if best == number:
            return number, chosen_by, equal
        are_turns = reading.thread.common_messages(self._entries[best].digests) >= len(self._entries[number].digests)
        return best, chosen_by if are_turns else "skeleton", equal

    def _sharing_much(self, kept: KeptRequest, reading: PromptReading) -> list[int]:
        """Requests that may share most of the prompt: of the same prompt, and of the same skeleton."""
        numbers = self._latest(same_key(kept), kept, 1)
        if reading.group is not None:
            for key in narrower(reading.group, kept):
                numbers += self._latest(key, kept, _CANDIDATES)
        return numbers

    def _of_session(self, kept: KeptRequest, reading: PromptReading) -> int | None:
        """Of the last requests of the session, the one with the longest common prefix, the latest on a tie.

        None if all belong to other applications (agents call each other) and another request to this one.
        """
        numbers = self._latest(session_key(kept), kept, _SESSION_REQUESTS, "any")
        if self._has_other_models(kept):
            numbers = self._without_other_tasks(numbers, kept, reading)
        if not any(self._is_related(number, reading) for number in numbers) and (
            self._of_group(kept, reading.group) is not None
        ):
            return None
        ids = self._packed(kept.ids)
        equal = {number: ids.common_tokens(self._entries[number].ids) for number in numbers}
        longest = max(equal.values(), default=0)
        return max(
            (number for number in numbers if equal[number] > longest - _SAME_TOKENS),
            key=lambda number: (
                self._has_similar_frame(self._entries[number].group, reading),
                reading.thread.common_messages(self._entries[number].digests),
                self._entries[number].kept.model == kept.model,
                number,
            ),
            default=None,
        )

    def _without_other_tasks(self, numbers: list[int], kept: KeptRequest, reading: PromptReading) -> list[int]:
        """A session's requests without those of other models, but for turns that this request continues.

        The same prompt at a second model is that model's first one, unless the session has no request of it: then the
        conversation moved.
        """
        own = [number for number in numbers if self._entries[number].kept.model == kept.model]
        thread = reading.thread
        if not own:
            is_chat = bool(thread.digests)
            return [
                number
                for number in numbers
                if thread.common_messages(self._entries[number].digests)
                or not (is_chat or self._entries[number].group != reading.group)
            ]
        return [number for number in numbers if number in own or thread.continues(self._entries[number].digests)]

    def _is_related(self, number: int, reading: PromptReading) -> bool:
        entry = self._entries[number]
        return entry.group == reading.group or reading.thread.common_messages(entry.digests) > 0

    def _of_conversation(self, kept: KeptRequest, reading: PromptReading) -> int | None:
        """An earlier turn of the same conversation: continued here, a branch, or trimmed at the front."""
        thread, held = reading.thread, self._postings
        if not thread.digests:
            return self._continued_prompt(kept, reading)
        for length in thread.lengths(held, len(thread.digests)):
            number = self._turn(kept, reading, length)
            if number is None and length > 1 and thread.branch(length) in held:
                # A turn one message shorter is continued here; a branch only shares its beginning.
                branches = self._of_same_session(thread.branch(length), kept, reading, (0, length))
                branch = self._preferred(branches, kept)
                if branch is not None:
                    number = self._turn(kept, reading, length - 1)
                    number = branch if number is None else number
            if number is not None:
                return number
        for key, begin, end in thread.tails():
            if key in held:
                number = self._preferred(self._of_same_session(key, kept, reading, (begin, end)), kept)
                if number is not None:
                    return number
        return None

    def _continued(self, kept: KeptRequest, reading: PromptReading, models: _Models = "any") -> int | None:
        """The earlier turn that this prompt continues."""
        for length in reading.thread.lengths(self._postings, len(reading.thread.digests) - 1):
            number = self._turn(kept, reading, length, models)
            if number is not None:
                return number
        return None

    def _turn(self, kept: KeptRequest, reading: PromptReading, length: int, models: _Models = "own") -> int | None:
        """A request whose prompt, with or without its reply, equals the first ``length`` messages of this one."""
        answered, whole = reading.thread.answered(length), reading.thread.whole(length)
        if answered not in self._postings and whole not in self._postings:
            return None
        numbers = self._latest(answered, kept, _CANDIDATES, models)
        number = self._preferred(self._of_same_application(numbers, reading, (0, length)), kept)
        if number is None:
            number = self._preferred(self._of_same_session(whole, kept, reading, (0, length), models), kept)
        return number

    def _of_same_application(self, numbers: list[int], reading: PromptReading, common: tuple[int, int]) -> list[int]:
        """Those with a similar frame; others only if the common messages, from one to another, are distinctive: the
        conversations of two applications may both begin with a greeting."""
        alike = [number for number in numbers if self._has_similar_frame(self._entries[number].group, reading)]
        return numbers if numbers and not alike and reading.thread.is_distinctive(*common) else alike

    def _has_similar_frame(self, group: int | None, reading: PromptReading) -> bool:
        if group is None or group == reading.group:
            return group == reading.group
        return self._groups.is_similar(group, reading.features, is_opening=reading.frame.is_opening)

    def _of_same_session(
        self, key: int, kept: KeptRequest, reading: PromptReading, common: tuple[int, int], models: _Models = "own"
    ) -> list[int]:
        """The latest requests of a key, without those of other sessions or applications."""
        numbers = self._of_same_application(self._latest(key, kept, _CANDIDATES, models), reading, common)
        if not numbers or not kept.session:
            return numbers
        return [number for number in numbers if self._entries[number].kept.session in ("", kept.session)]

    def _continued_prompt(self, kept: KeptRequest, reading: PromptReading) -> int | None:
        """For completions: the request whose prompt is the longest prefix of this one's."""
        if not kept.text.messages or kept.text.messages[0].role != PROMPT_ROLE:
            return None
        prompt = kept.text.messages[0].text
        best, best_length = None, _CONTINUED_CHARACTERS - 1
        beginnings = beginning_keys(kept.tenant, reading.frame)
        for number in (number for key in beginnings for number in self._latest(key, kept, _PROMPTS)):
            earlier = self._entries[number].kept.text.messages[0].text
            if best_length < len(earlier) < len(prompt) and prompt.startswith(earlier):
                best, best_length = number, len(earlier)
        return best

    def _of_group(self, kept: KeptRequest, group: int | None) -> int | None:
        """The last request of a group and of the same model: of the same source, else of any."""
        if group is None:
            return None
        for key in narrower(group, kept):
            if numbers := self._latest(key, kept, _CANDIDATES):
                return numbers[0]
        return None

    def _similar(self, kept: KeptRequest, reading: PromptReading) -> int | None:
        group = self._groups.most_similar(
            reading.features,
            is_opening=reading.frame.is_opening,
            accepts=lambda each: narrower(each, kept)[1] in self._postings,
        )
        if group is not None:
            return self._of_group(kept, group)
        for key in beginning_keys(kept.tenant, reading.frame):
            number = self._preferred(self._latest(key, kept, _CANDIDATES), kept)
            if number is not None:
                return number
        return None

    def _latest(self, key: int, kept: KeptRequest, count: int, models: _Models = "own") -> list[int]:
        """The last requests of a key, latest first. Filters by tenant, because hashed keys may collide, and by agent:
        a subagent's prompt is no change of that of a main agent, or of another one of its session."""
        entries, tenant, model = self._entries, kept.tenant, kept.model
        return [
            number
            for number in self._postings.latest(key, count)
            if (each := entries[number].kept).tenant == tenant
            and (each.agent == kept.agent or (each.agent and kept.agent and each.session != kept.session))
            and (models == "any" or (each.model == model) is (models == "own"))
        ]

    def _preferred(self, numbers: list[int], kept: KeptRequest) -> int | None:
        """The best of some candidates, latest first: of the same source first, then the latest."""
        for number in numbers:
            if self._entries[number].kept.source == kept.source:
                return number
        return numbers[0] if numbers else None

    def _read(self, kept: KeptRequest) -> PromptReading:
        last = self._last_read
        # ``find`` and then ``keep`` read the same request.
        if last is not None and last.text is kept.text and last.tenant == kept.tenant:
            return last
        reading = self._readings.get(kept.text)
        if reading is None or reading.tenant != kept.tenant:
            reading = PromptReading(kept.text, kept.tenant, self._frames.of(kept.text), self._texts)
            self._readings.put(kept.text, reading)
        self._last_read = reading
        return reading

    def _packed(self, ids: bytes) -> PackedIds:
        # ``find`` and then ``keep`` read the same request.
        if ids is not self._last_packed[0]:
            self._last_packed = ids, packed(ids)
        return self._last_packed[1]

    def _keys(self, kept: KeptRequest, reading: PromptReading, *, continues: bool) -> list[int]:
        keys = [same_key(kept), *reading.thread.keys(kept, continues), *beginning_keys(kept.tenant, reading.frame)]
        if kept.session:
            keys.append(session_key(kept))
        if reading.group is not None:
            keys += (*narrower(reading.group, kept), reading.group)
        return keys

    def _drop_earlier_turn(self, number: int, kept: KeptRequest) -> None:
        last = self._entries[number]
        before = self._entries.get(last.before) if last.before is not None else None
        if before is None or last.before is None:
            return
        if line(before.kept) == line(last.kept) == line(kept):
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
        self._readings.clear()
        self._frames.forget_texts()

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        self._entries_bytes -= entry.size
        self._models[entry.kept.model] -= 1
        if not self._models[entry.kept.model]:
            del self._models[entry.kept.model]
        self._texts.release(entry.kept.text, entry.ids)
        self._postings.discard(entry.keys, number)
        if entry.group is not None and entry.group not in self._postings:
            self._groups.remove(entry.group)
