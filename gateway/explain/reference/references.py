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
from itertools import islice
from sys import getsizeof

import msgspec
import numpy as np

from gateway.core.bounded_cache import BoundedCache
from gateway.core.explanation import RequestRecord
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.explain.prompt_text import PROMPT_ROLE
from gateway.explain.reference.frame import Frame, Frames, are_similar, similarity
from gateway.explain.reference.kept_request import (
    Choice,
    ChosenBy,
    KeptEntry,
    KeptRequest,
    PromptReading,
    ReferenceMatch,
)
from gateway.explain.reference.overlap import RUN_TOKENS, common_tokens
from gateway.explain.reference.thread import REPLIES, Thread
from gateway.explain.reference.token_index import DENSE_TOKENS, TokenIndex, passages, sampled

_SESSION_REQUESTS = 8
"""Number of the last requests of a session that are candidates: agents send several at a time."""

_CANDIDATES = 4
_HOLDERS = 64
"""Beginnings that are looked at, from the longest down, until one is found that may be compared."""

_SAME_TOKENS = 16
"""Common prefixes whose lengths differ by less count as equal: times differ in their last digits."""

_LATER_TURNS = 50_000
"""Turns that later ones contain, at about 100 bytes each."""

_LEAST_PASSAGES, _MOST_PASSAGES = 2, 32
_PASSAGES_PER_CHANCE, _SAMPLED_PER_CHANCE = 100, 12
"""Two texts share some passages by chance, and because messages begin and end alike: fewer than one in so many of what
is new are no reason to compare them. Of long texts, of which few passages are looked up, more are none."""

_FEW_PASSAGES = 4
"""Requests with less than this part of the passages that another one has are no candidates."""

_CONTINUED_CHARACTERS = 64
"""A completion's prompt of at least this length that is a prefix of another was continued there."""

_LARGEST_PART = 8
_MEMO_PART = 16
_INDEX_PART = 6
_REQUEST_BYTES = 2_600
"""Memory of a request with its keys, besides its body, its ids and its replies."""

_BODY_END = 64
"""Bytes behind the last message of most bodies."""

_THREAD_BYTES = 300
_NONE = np.zeros(0, np.int64) - 1


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
        memo_bytes = 0 if frames is not None else max_bytes // _MEMO_PART
        self._index = TokenIndex(max_bytes // _INDEX_PART)
        self._budget_bytes = max_bytes - memo_bytes - self._index.nbytes
        self._frames = frames or Frames(memo_bytes)
        self._entries: OrderedDict[int, KeptEntry] = OrderedDict()
        self._entries_bytes = 0
        self._next = 0
        self._models: Counter[str] = Counter()
        self._by_key: dict[int, dict[int, None]] = {}
        self._held = _HeldBytes()
        self._threads: BoundedCache[int, Thread] = BoundedCache(max_weight=max_bytes // _MEMO_PART)
        self._last: PromptReading | None = None
        self._later: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held_bytes(self) -> int:
        """Approximate memory of the requests, without the index and the caches of a fixed size each."""
        return self._entries_bytes + self._held.size

    def find(self, kept: KeptRequest, now: float) -> ReferenceMatch | None:
        """The earlier request to compare with; None if there is no similar one. ``now`` is Unix seconds."""
        self.expire(now)
        reading = self._read(kept)
        number, chosen_by = self._choose(reading)
        if number is None:
            return None
        found, is_same = self._entries[number].whole, chosen_by in ("session", "conversation")
        equal = common_tokens(reading.kept.ids, found.ids)
        is_turn = reading.turn == number and equal == len(found.ids) // TOKEN_BYTES
        return ReferenceMatch(number, found, chosen_by, is_same, equal, reading.is_rest_new, is_turn)

    def numbered(self, number: int, kept: KeptRequest) -> ReferenceMatch | None:
        """The earlier request with a number, to compare with; None if it is not kept any more."""
        found = self.kept(number)
        if found is None:
            return None
        return ReferenceMatch(number, found, "conversation", True, common_tokens(kept.ids, found.ids))

    def kept(self, number: int) -> KeptRequest | None:
        """The request with a number; None if it is not kept."""
        entry = self._entries.get(number)
        return None if entry is None else entry.whole

    def take_untried(self, number: int) -> RequestRecord | None:
        """The record of a request; None if there is none, and from the second time on."""
        entry = self._entries.get(number)
        if entry is None or entry.kept.record is None:
            return None
        whole, record = entry.whole, entry.kept.record
        entry.kept = msgspec.structs.replace(entry.kept, record=None)
        return msgspec.structs.replace(record, body=whole.body, parts=(whole.ids,), replies=whole.replies)

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
        size = _own_bytes(kept)
        if size + len(kept.ids) + len(kept.body) > self._max_bytes // _LARGEST_PART:
            return -1
        ids, body = self._same_bytes(reading)
        number, self._next = self._next, self._next + 1
        before = reading.turn if reading.turn in self._entries else None
        start = 0
        began_tokens = reading.tokens
        if before is not None:
            earlier = self._entries[before]
            # What one session sent leaves with it, so another one does not hold it.
            is_shared = earlier.kept.conversation == kept.conversation
            if is_shared:
                self._share_body(earlier, body)
            if self._is_beginning(earlier, reading):
                start, began_tokens = earlier.tokens, earlier.began_tokens
                if is_shared:
                    earlier.held_ids = self._held.replaced(earlier.held_ids, ids)
                self._note_later(before, number)
            self._drop_earlier_turn(earlier, kept)
        self._write(reading, number, start)
        self._entries[number] = KeptEntry(
            msgspec.structs.replace(kept, ids=b"", body=b"", chains=()),
            self._held.add(ids),
            self._held.add(body),
            len(body),
            b"",
            reading.tokens,
            reading.keys,
            before,
            began_tokens,
            size,
        )
        self._entries_bytes += size
        self._models[kept.model] += 1
        for key in reading.keys:
            self._by_key.setdefault(key, {})[number] = None
        while self.held_bytes > self._budget_bytes:
            self._drop(next(iter(self._entries)))
        return number

    def _same_bytes(self, reading: PromptReading) -> tuple[bytes, bytes]:
        """The ids and the body of a request, as the latest one that sent the same holds them."""
        ids, body = reading.kept.ids, reading.kept.body
        numbers = self._by_key.get(reading.whole_key)
        if not numbers:
            return ids, body
        same = self._entries[next(reversed(numbers))]
        return same.held_ids if same.held_ids == ids else ids, same.held_body if same.held_body == body else body

    def _share_body(self, earlier: KeptEntry, body: bytes) -> None:
        """Let a turn hold the body of the one that follows, if all but its end stands there, too."""
        own = earlier.whole.body
        for rest in (_BODY_END, len(own) // 32, len(own) // 4):
            begins = max(len(own) - rest, 0)
            if begins and body.startswith(own[:begins]):
                more = rest - len(earlier.body_ends)
                earlier.held_body = self._held.replaced(earlier.held_body, body)
                earlier.body_begins, earlier.body_ends = begins, own[begins:]
                earlier.size += more
                self._entries_bytes += more
                return

    def _write(self, reading: PromptReading, number: int, start: int) -> None:
        """Write a request, with its replies, into the index of ids from a token on."""
        written = [sampled(reading.passages(start))]
        for reply in [each.ids for each in reading.kept.replies[1:REPLIES] if each.ids]:
            behind = reading.kept.ids[-RUN_TOKENS * TOKEN_BYTES :] + reply
            written.append(sampled(passages(behind, reading.owner)))
        for each in reading.beginnings:
            written.append(each[start // reading.step_tokens :])
            start = reading.tokens
        self._index.add(np.concatenate(written), number)

    # What is chosen

    def _choose(self, reading: PromptReading) -> Choice:
        if reading.chosen is None:
            reading.chosen = self._by_ids(reading)
        return reading.chosen

    def _by_ids(self, reading: PromptReading) -> Choice:
        """The choice, without the texts if the token ids leave no question."""
        kept = reading.kept
        session = self._latest(reading.session_key, kept, _SESSION_REQUESTS)
        first = self._latest(reading.first_key, kept, _CANDIDATES)
        has_moved = any(self._entries[each].kept.model != kept.model for each in first)
        turn = None if has_moved else self._turn(reading, session or first)
        if turn is not None and not self._is_sent_again(turn, reading) and self._is_of_session(reading, turn, session):
            return self._as_turn(reading, turn, session)
        length, holder = self._holder(reading)
        if not has_moved and holder is not None:
            # The holder's reply, or its last turn but one, tells it from others with the same prompt.
            before = self._entries[holder].before
            turn = self._turn(reading, [holder] if before is None else [holder, before])
            is_certain = turn is not None and (
                length > self._entries[turn].tokens or not self._is_sent_again(turn, reading)
            )
            if turn is not None and is_certain and self._is_of_session(reading, turn, session):
                return self._as_turn(reading, turn, session)
            holder = self._latest_like(reading, holder)
        equal = 0 if holder is None else self._equal(holder, reading)
        others = self._with_passages(reading, equal)
        if holder is not None and turn is None and not (others or has_moved):
            if session and self._near_longest(reading, session) == [holder]:
                reading.is_rest_new = True
                return holder, "session"
            if not session:
                reading.is_rest_new = True
                entry = self._entries[holder]
                shares_turns = equal >= entry.began_tokens and self._may_continue(reading, entry)
                is_continued = shares_turns or self._is_continued_prompt(reading, entry)
                is_turn = is_continued and self._may_be_of_session(holder, kept)
                return holder, "conversation" if is_turn else "beginning"
        numbers = {*others, *first, *(each for each in (turn, holder) if each is not None)}
        if not (numbers or session):
            return None, "similar"
        return self._by_text(reading, session, sorted(numbers, reverse=True))

    def _as_turn(self, reading: PromptReading, turn: int, session: Sequence[int]) -> Choice:
        entry = self._entries[turn]
        # The same prompt again continues what the first one continued.
        reading.turn = turn if entry.tokens < reading.tokens else entry.before
        return turn, "session" if session else "conversation"

    def _turn(self, reading: PromptReading, numbers: Iterable[int]) -> int | None:
        """Of some requests the one whose prompt is the longest beginning of this one, the latest on a tie."""
        kept, best, longest = reading.kept, None, 0
        for number in numbers:
            entry = self._entries.get(number)
            if entry is None or entry.tokens <= longest or entry.kept.model != kept.model:
                continue
            if self._may_continue(reading, entry) and self._is_beginning(entry, reading):
                best, longest = number, entry.tokens
        return best

    def _is_sent_again(self, number: int, reading: PromptReading) -> bool:
        """Whether others sent the prompt of a turn, too, so that only the reply can tell which one is continued."""
        entry = self._entries[number]
        return entry.tokens < reading.tokens and len(self._by_key[entry.keys[0]]) > 1

    def _is_of_session(self, reading: PromptReading, number: int, session: Sequence[int]) -> bool:
        """Whether a turn is what the session has sent that is nearest to this request."""
        if session:
            return self._near_longest(reading, session) == [number]
        return self._may_be_of_session(number, reading.kept)

    def _latest_like(self, reading: PromptReading, number: int) -> int:
        """The latest turn of a conversation of which an earlier one has the longest common beginning."""
        while (later := self._later.get(number)) is not None and self._may_be_compared(later, reading.kept):
            number = later
        return number

    def _may_continue(self, reading: PromptReading, entry: KeptEntry) -> bool:
        """Whether a longer prompt is another turn of the same conversation: not behind system messages alone, nor
        behind a few words of a completion."""
        if entry.kept.endpoint == Endpoint.CHAT:
            return entry.kept.turn > 0
        messages = entry.whole.text.messages
        is_single = len(messages) == len(reading.kept.text.messages) == 1
        return is_single and len(messages[0].text) >= _CONTINUED_CHARACTERS

    def _has_moved(self, reading: PromptReading, number: int) -> bool:
        """Whether a turn on another model is continued here."""
        earlier, thread = self._thread(number), reading.thread
        return thread.continues(earlier) and (self._may_be_of_session(number, reading.kept) or thread.answers(earlier))

    def _holder(self, reading: PromptReading) -> tuple[int, int | None]:
        """The request that has the longest common beginning, perhaps with its reply, the latest on a tie; and how long
        that is at least."""
        step, tried = reading.step_tokens, set[int]()
        found = self._index.find(reading.beginnings[0][: reading.tokens // step]) if reading.beginnings else _NONE
        for at in np.flatnonzero(found >= 0)[::-1][:_HOLDERS].tolist():
            number, length = self._successor(int(found[at])), (at + 1) * step
            if number in tried or not self._may_be_compared(number, reading.kept):
                continue
            tried.add(number)
            if self._equal(number, reading) >= min(length, self._entries[number].tokens):
                return length, number
        # Prompts of less than a step have no beginning in the index.
        same = [] if not reading.tokens else self._latest(reading.whole_key, reading.kept, 1)
        return reading.tokens, next((each for each in same if self._may_be_compared(each, reading.kept)), None)

    def _with_passages(self, reading: PromptReading, start: int) -> list[int]:
        """The requests that have most passages of a prompt from a token on, and more than any two texts have by
        chance."""
        own = reading.passages(start)[: max(reading.tokens - start - RUN_TOKENS + 1, 0)]
        runs = sampled(own)
        found = self._index.find(runs)
        if np.count_nonzero(found >= 0) < _LEAST_PASSAGES:
            return []
        # Each passage counts once: sentences and the marks between messages occur many times.
        runs, first = np.unique(runs, return_index=True)
        found = found[first]
        found = found[found >= 0]
        by_chance = len(runs) // (_PASSAGES_PER_CHANCE if len(own) <= DENSE_TOKENS else _SAMPLED_PER_CHANCE)
        by_chance = min(max(_LEAST_PASSAGES, by_chance), _MOST_PASSAGES)
        if len(found) < by_chance:
            return []
        times: Counter[int] = Counter()
        for number, count in zip(*np.unique(found, return_counts=True), strict=True):
            times[self._successor(int(number))] += int(count)
        least = max(by_chance, max(times.values(), default=0) // _FEW_PASSAGES)
        numbers = [
            each for each, count in times.items() if count >= least and self._may_be_compared(each, reading.kept)
        ]
        return sorted(numbers, key=lambda each: (-times[each], -each))[:_CANDIDATES]

    def _successor(self, number: int) -> int:
        """The first later turn that is kept, of a turn that is not kept any more."""
        path = []
        while number not in self._entries and number in self._later:
            path.append(number)
            number = self._later[number]
        for each in path[:-1]:
            self._later[each] = number
        return number

    def _by_text(self, reading: PromptReading, session: Sequence[int], numbers: Sequence[int]) -> Choice:
        """The choice among some requests, latest first, by what they say."""
        kept = reading.kept
        own = [each for each in numbers if self._entries[each].kept.model == kept.model]
        alike = [each for each in own if self._has_same_frame(each, reading)]
        if numbers and not alike:
            # Passages that many applications have name the last one that sent them.
            begun_alike = self._latest(reading.opening_key, kept, _CANDIDATES)
            alike = [each for each in begun_alike if self._has_same_frame(each, reading)]
            own = sorted({*own, *alike}, reverse=True)
        number = self._of_session(reading, session, alike)
        chosen_by: ChosenBy = "session"
        if number is None:
            number, chosen_by = self._of_conversation(reading, own), "conversation"
            moved = [each for each in numbers if each not in own and self._has_moved(reading, each)]
            number = max(
                [*([] if number is None else [number]), *moved],
                key=lambda each: (len(self._thread(each).digests), each in own, each),
                default=None,
            )
        if number is not None:
            entry = self._entries[number]
            is_longer = entry.tokens < reading.tokens and self._is_beginning(entry, reading)
            reading.turn = number if is_longer or reading.thread.continues(self._thread(number)) else None
            return number, chosen_by
        if alike:
            return self._with_longest_beginning(reading, alike), "skeleton"
        # Subagents of one style resemble each other: nothing that they have in common was changed.
        return None if kept.agent else self._most_similar(reading, own), "similar"

    def _of_session(self, reading: PromptReading, numbers: Sequence[int], alike: Sequence[int]) -> int | None:
        """Of the last requests of the session, the one with the longest common prefix, the latest on a tie.

        None if all belong to other applications (agents call each other) and another request to this one.
        """
        kept, thread = reading.kept, reading.thread
        if self._has_other_models(kept):
            numbers = self._without_other_tasks(reading, numbers)
        are_related = any(
            self._has_same_frame(each, reading) or thread.common_messages(self._thread(each)) for each in numbers
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
                thread.common_messages(self._thread(each)),
                self._entries[each].kept.model == kept.model,
                each,
            ),
        )

    def _without_other_tasks(self, reading: PromptReading, numbers: Sequence[int]) -> list[int]:
        """A session's requests without those of other models, but for turns that this request continues.

        The same prompt at a second model is that model's first one, unless the session has no request of it: then the
        conversation moved.
        """
        own = [each for each in numbers if self._entries[each].kept.model == reading.kept.model]
        thread = reading.thread
        if own:
            return [each for each in numbers if each in own or thread.continues(self._thread(each))]
        return [
            each
            for each in numbers
            if thread.common_messages(self._thread(each))
            or not (thread.digests or not self._has_same_frame(each, reading))
        ]

    def _of_conversation(self, reading: PromptReading, numbers: Iterable[int]) -> int | None:
        """An earlier turn of the same conversation: continued here, a branch, or trimmed at the front."""
        ranks = {each: self._conversation_rank(reading, each) for each in numbers}
        return max(
            (each for each, rank in ranks.items() if rank is not None),
            key=lambda each: (ranks[each], self._entries[each].kept.source == reading.kept.source, each),
            default=None,
        )

    def _conversation_rank(self, reading: PromptReading, number: int) -> tuple[int, int] | None:
        """How near a request is to this one in their conversation; None if they belong to different ones.

        A turn that is continued here, with its reply, comes before one without; both before a branch, which only shares
        messages in front, unless it shares two more of them; and all before a history that was trimmed at the front.
        """
        entry, thread = self._entries[number], reading.thread
        earlier, of_session = self._thread(number), self._may_be_of_session(number, reading.kept)
        if not thread.digests:
            return (1, len(entry.whole.text.messages[0].text)) if self._is_continued_prompt(reading, entry) else None
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

    def _is_continued_prompt(self, reading: PromptReading, entry: KeptEntry) -> bool:
        """For completions: whether a prompt is the beginning of this one."""
        if Endpoint.CHAT in {entry.kept.endpoint, reading.kept.endpoint}:
            return False
        messages, earlier = reading.kept.text.messages, entry.whole.text.messages
        if not len(messages) == len(earlier) == 1 or messages[0].role != PROMPT_ROLE or earlier[0].role != PROMPT_ROLE:
            return False
        return len(earlier[0].text) >= _CONTINUED_CHARACTERS and messages[0].text.startswith(earlier[0].text)

    def _is_of_application(self, reading: PromptReading, number: int, begin: int, end: int) -> bool:
        """Whether common messages, from one to another, belong to one conversation: those of two applications may both
        begin with a greeting."""
        return reading.thread.is_distinctive(begin, end) or self._has_similar_frame(number, reading)

    def _with_longest_beginning(self, reading: PromptReading, numbers: Sequence[int]) -> int:
        """The request with the longest common prefix: of the same source first, then the latest."""
        return self._preferred(self._near_longest(reading, numbers), reading.kept)

    def _near_longest(self, reading: PromptReading, numbers: Sequence[int]) -> list[int]:
        """The requests with the longest common prefix, give or take a few tokens."""
        equal = {each: self._equal(each, reading) for each in numbers}
        longest = max(equal.values(), default=0)
        return [each for each in numbers if equal[each] > longest - _SAME_TOKENS]

    def _most_similar(self, reading: PromptReading, numbers: Iterable[int]) -> int | None:
        best, best_share = None, 0.0
        for number in numbers:
            share = self._similarity(number, reading)
            if share > best_share:
                best, best_share = number, share
        return best

    # What is compared

    def _frame(self, number: int) -> Frame:
        """The frame of a kept request."""
        return self._frames.of(self._entries[number].whole.text)

    def _thread(self, number: int) -> Thread:
        """The messages of a kept request, with its replies."""
        thread = self._threads.get(number)
        if thread is None:
            kept = self._entries[number].whole
            thread = Thread(kept.text, kept.replies)
            self._threads.put(number, thread, weight=_THREAD_BYTES + 2 * len(kept.body))
        return thread

    def _may_be_compared(self, number: int, kept: KeptRequest) -> bool:
        """Whether a request is kept, and of the same tenant, model and agent. A subagent's prompt is no change of that
        of a main agent, or of another one of its session."""
        entry = self._entries.get(number)
        return entry is not None and entry.kept.model == kept.model and _is_of_agent(entry.kept, kept)

    def _may_be_of_session(self, number: int, kept: KeptRequest) -> bool:
        return not kept.session or self._entries[number].kept.session in ("", kept.session)

    def _is_beginning(self, entry: KeptEntry, reading: PromptReading) -> bool:
        """Whether a whole prompt is the beginning of this one."""
        return 0 < entry.tokens <= reading.tokens and reading.kept.ids.startswith(entry.ids)

    def _equal(self, number: int, reading: PromptReading) -> int:
        """Length of the common prefix with a request, in tokens."""
        return common_tokens(reading.kept.ids, self._entries[number].ids)

    def _has_same_frame(self, number: int, reading: PromptReading) -> bool:
        return self._frame(number).skeleton == reading.frame.skeleton

    def _has_similar_frame(self, number: int, reading: PromptReading) -> bool:
        return self._has_same_frame(number, reading) or self._similarity(number, reading) > 0

    def _similarity(self, number: int, reading: PromptReading) -> float:
        """How similar the frame of a request is, 0 to 1; 0 if it is of another application."""
        mine, other = reading.frame, self._frame(number)
        if mine.is_opening != other.is_opening:
            return 0.0
        share = similarity(mine.features, other.features)
        if are_similar(len(mine.features & other.features), share, mine.is_opening):
            return share
        # Below the share of any similar one.
        return 0.01 if not set(mine.beginnings).isdisjoint(other.beginnings) else 0.0

    def _has_other_models(self, kept: KeptRequest) -> bool:
        return len(self._models) > (kept.model in self._models)

    def _latest(self, key: int | None, kept: KeptRequest, count: int) -> list[int]:
        """The last requests of a key, of any model, latest first."""
        numbers = islice(reversed(self._by_key.get(key, {})), count) if key is not None else ()
        return [each for each in numbers if _is_of_agent(self._entries[each].kept, kept)]

    def _preferred(self, numbers: Sequence[int], kept: KeptRequest) -> int:
        """The best of some candidates, latest first: of the same source first, then the latest."""
        return next((each for each in numbers if self._entries[each].kept.source == kept.source), numbers[0])

    # What is kept

    def _read(self, kept: KeptRequest) -> PromptReading:
        last = self._last
        # ``find`` and then ``keep`` read the same request. Clients choose the ids of theirs.
        if last is None or _identity(last.kept) != _identity(kept) or last.kept.ids is not kept.ids:
            last = self._last = PromptReading(kept, self._frames)
        return last

    def _note_later(self, number: int, later: int) -> None:
        """What stands in a turn also stands in a later one, whose ids begin with it."""
        self._later[number] = later
        if len(self._later) > _LATER_TURNS:
            self._later.popitem(last=False)

    def _drop_earlier_turn(self, last: KeptEntry, kept: KeptRequest) -> None:
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
        self._threads.clear()
        self._frames.forget_texts()

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        self._held.drop(entry.held_ids)
        self._held.drop(entry.held_body)
        self._threads.pop(number)
        self._entries_bytes -= entry.size
        self._models[entry.kept.model] -= 1
        if not self._models[entry.kept.model]:
            del self._models[entry.kept.model]
        self._last = None
        for key in entry.keys:
            numbers = self._by_key[key]
            del numbers[number]
            if not numbers:
                del self._by_key[key]


def _is_of_agent(earlier: KeptRequest, kept: KeptRequest) -> bool:
    if earlier.tenant != kept.tenant:
        return False
    return earlier.agent == kept.agent or bool(earlier.agent and kept.agent and earlier.session != kept.session)


def _identity(kept: KeptRequest) -> tuple[object, ...]:
    return kept.tenant, kept.model, kept.request_id, kept.at, id(kept.body)


def _line(kept: KeptRequest) -> tuple[str, ...]:
    """What the turns of a conversation share, unless it changed; a turn before a change is kept."""
    return kept.session, kept.agent, kept.model, kept.source


def _own_bytes(kept: KeptRequest) -> int:
    """Memory of a request besides its body and its ids."""
    size = _REQUEST_BYTES + len(kept.session) + len(kept.agent) + len(kept.conversation)
    for reply in kept.replies:
        size += getsizeof(reply.text or "") + len(reply.ids or b"") + 150
    return size


class _HeldBytes:
    """Counts bytes that several requests hold once.

    Attributes:
        size: All of them.
    """

    def __init__(self) -> None:
        self.size = 0
        self._holders: Counter[int] = Counter()

    def add(self, data: bytes) -> bytes:
        """One more request holds an object."""
        # The holders keep it alive, so that its id stays unique.
        self._holders[id(data)] += 1
        if self._holders[id(data)] == 1:
            self.size += len(data)
        return data

    def drop(self, data: bytes) -> None:
        """A request holds an object no more."""
        self._holders[id(data)] -= 1
        if not self._holders[id(data)]:
            del self._holders[id(data)]
            self.size -= len(data)

    def replaced(self, before: bytes, data: bytes) -> bytes:
        """A request holds another object instead."""
        self.add(data)
        self.drop(before)
        return data
