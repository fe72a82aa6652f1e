"""Kept requests, and the keys by which they are found: conversations, skeletons, similar frames.

``Thread`` is a conversation as a sequence of message digests, without system messages: these may change from turn to
turn, and occur anywhere. Digests are valid within one process only. ``Groups`` finds requests with a similar frame, and
``SharedTexts`` holds once what many prompts contain: system messages, tools, the history of a conversation.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from sys import getsizeof
from typing import Generic, Literal, TypeVar

import msgspec

from gateway.core.explanation import ReplyChoice, SpaceKey
from gateway.explain.prompt_text import LEADING_ROLES, PROMPT_ROLE, Message, PromptText, Tool
from gateway.explain.reference.frame import Frame, are_similar

_DISTINCTIVE_REPLY_CHARACTERS = 32
"""A reply of this length is recognized without the message before it."""

_DISTINCTIVE_CHARACTERS = 120
"""Messages with this much text are not equal by chance, as greetings are."""

_BRANCHES = 8
_TAIL_MESSAGES = 64
_REPLIES = 4


class KeptRequest(msgspec.Struct, frozen=True):
    """A request kept for comparison.

    Attributes:
        request_id: Its id.
        at: End of the request, Unix seconds.
        tenant: Id of the tenant; requests of different tenants are never compared.
        model: Id of the model.
        source: Client family.
        session: Session named by the client; empty for none.
        where: Its prefix space.
        text: Its prompt.
        ids: The prompt's token ids, little-endian u32.
        replies: Replies of the engine.
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


class ReferenceMatch(msgspec.Struct, frozen=True):
    """The earlier request to compare with.

    Attributes:
        reference: The earlier request.
        chosen_by: What both have in common.
        same_conversation: Whether both belong to one conversation, so a difference is an edit of its history.
    """

    reference: KeptRequest
    chosen_by: "ChosenBy"
    same_conversation: bool


class Thread:
    """The messages of one prompt.

    Attributes:
        digests: Digest of each message.
        chain: Digest of each prefix: of the first message, the first two, and so on.
    """

    __slots__ = ("_answered", "_branch", "_characters", "_messages", "_tenant", "_whole", "chain", "digests")

    def __init__(self, tenant: str, text: PromptText, skeleton: int | None) -> None:
        """``skeleton`` is the frame's: a single first message, such as a greeting, is ambiguous without it."""
        self._tenant = tenant
        self._messages = [each for each in text.messages if each.role not in LEADING_ROLES and each.role != PROMPT_ROLE]
        self.digests = tuple(map(_digest, self._messages))
        # Index n: characters of the first n messages.
        self._characters = list(accumulate((len(each.text) for each in self._messages), initial=0))
        self.chain = tuple(accumulate(self.digests, _chained, initial=0))[1:]
        self._whole = [hash((tenant, "whole", link, None)) for link in self.chain]
        if self.chain:
            self._whole[0] = hash((tenant, "whole", self.chain[0], skeleton))
        self._answered = [hash((tenant, "answered", link)) for link in self.chain]
        self._branch = [hash((tenant, "branch", link)) for link in self.chain]

    def is_distinctive(self, begin: int, end: int) -> bool:
        """Whether messages have enough text to identify a conversation."""
        return self._characters[end] - self._characters[begin] >= _DISTINCTIVE_CHARACTERS

    def common_messages(self, digests: tuple[int, ...]) -> int:
        """Number of equal messages from the first on."""
        count = 0
        for one, other in zip(self.digests, digests, strict=False):
            if one != other:
                break
            count += 1
        return count

    def continues(self, digests: tuple[int, ...]) -> bool:
        """Whether these are the messages of an earlier turn: all of them stand in front of others here."""
        return 0 < len(digests) < len(self.digests) and self.digests[: len(digests)] == digests

    def keys(self, kept: "KeptRequest", continues: bool) -> Iterator[int]:
        """Index keys of a request. ``continues``: an earlier turn of its conversation is kept."""
        count = len(self.digests)
        if not count:
            return
        yield self.whole(count)
        for text in [reply.text for reply in kept.replies[:_REPLIES] if reply.text]:
            digest = _digest(Message("assistant", text))
            yield self._key("answered", _chained(self.chain[-1], digest))
            yield self._key("pair", self.digests[-1], digest)
            if len(text) >= _DISTINCTIVE_REPLY_CHARACTERS:
                yield self._key("reply", digest)
        if count > 1:
            yield self._key("pair", self.digests[-2], self.digests[-1])
        if continues:
            for length in range(max(2, count - _BRANCHES), count):
                yield self.branch(length)

    def whole(self, length: int) -> int:
        """Key of requests whose whole prompt is the first ``length`` messages."""
        return self._whole[length - 1]

    def answered(self, length: int) -> int:
        """Key of requests whose prompt and reply are the first ``length`` messages."""
        return self._answered[length - 1]

    def turns(self) -> list[int]:
        """``whole`` and ``answered`` of all lengths but the whole conversation's."""
        return self._whole[:-1] + self._answered[:-1]

    def beginnings(self) -> list[int]:
        """``whole``, ``answered`` and ``branch`` of all lengths."""
        return self._whole + self._answered + self._branch

    def branch(self, length: int) -> int:
        """Key of later turns of a conversation with the same first ``length`` messages."""
        return self._branch[length - 1]

    def tails(self) -> Iterator[tuple[int, int, int]]:
        """Keys of requests whose last messages or reply occur anywhere in this prompt, last first; and the begin and
        end of these messages."""
        for at in range(len(self.digests) - 1, max(-1, len(self.digests) - 1 - _TAIL_MESSAGES), -1):
            if at:
                yield self._key("pair", self.digests[at - 1], self.digests[at]), at - 1, at + 1
            message = self._messages[at]
            if message.role == "assistant" and len(message.text) >= _DISTINCTIVE_REPLY_CHARACTERS:
                yield self._key("reply", self.digests[at]), at, at + 1

    def _key(self, *parts: Hashable) -> int:
        return hash((self._tenant, *parts))


def _chained(before: int, digest: int) -> int:
    """Digest of a prefix that is longer by one message."""
    return hash((before, digest))


def _digest(message: Message) -> int:
    calls = tuple([(call.name, call.canonical) for call in message.calls]) if message.calls else ()
    return hash((message.role, message.text.strip(), message.name, message.others, calls))


ChosenBy = Literal["session", "conversation", "skeleton", "similar"]

POSTING_BYTES = 190
"""Approximate memory of a number under a key: most keys hold a single number, others a dict."""


class Postings:
    """Numbers by key, in insertion order. A single number is held without a container."""

    def __init__(self) -> None:
        self._held: dict[int, int | dict[int, None]] = {}

    def add(self, key: int, number: int) -> None:
        """Append a number to a key."""
        held = self._held.get(key)
        if held is None:
            self._held[key] = number
        elif isinstance(held, dict):
            held[number] = None
        elif held != number:
            self._held[key] = {held: None, number: None}

    def discard(self, key: int, number: int) -> None:
        """Remove a number from a key; no effect if it is absent."""
        held = self._held.get(key)
        if isinstance(held, dict):
            held.pop(number, None)
            if not held:
                del self._held[key]
        elif held == number:
            del self._held[key]

    def times(self, keys: Iterable[int], count: int) -> dict[int, int]:
        """How many of the keys hold each number among their last ``count``, in the order of the keys."""
        times: dict[int, int] = {}
        get = self._held.get
        for key in keys:
            held = get(key)
            if isinstance(held, dict):
                for number in islice(reversed(held), count):
                    times[number] = times.get(number, 0) + 1
            elif held is not None:
                times[held] = times.get(held, 0) + 1
        return times

    def latest(self, key: int, count: int) -> Sequence[int]:
        """The last ``count`` numbers of a key, latest first."""
        held = self._held.get(key)
        if held is None:
            return ()
        return tuple(islice(reversed(held), count)) if isinstance(held, dict) else (held,)

    def holds_any(self, keys: Iterable[int]) -> bool:
        """Whether there is a number under any of the keys."""
        return not self._held.keys().isdisjoint(keys)

    def __contains__(self, key: int) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)


_GROUP_BYTES = 600
_FEATURE_BYTES = 45

_GROUPS_PER_FEATURE = 12
"""Only this many of the latest groups are read per feature: a feature of all groups does not discriminate."""


class Groups:
    """Finds a group by the features of its frame. A group is a number for a tenant and a skeleton."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._by_feature = Postings()
        self._features: dict[int, Sequence[int]] = {}

    def __contains__(self, group: int) -> bool:
        return group in self._features

    def add(self, group: int, features: Sequence[int]) -> None:
        """Add a group that is not present. ``features`` are ``feature_keys`` of its frame."""
        self._features[group] = features
        for feature in features:
            self._by_feature.add(feature, group)
        self.held_bytes += _bytes(len(features))

    def remove(self, group: int) -> None:
        """Remove a group; no effect if it is absent."""
        features = self._features.pop(group, None)
        if features is None:
            return
        for feature in features:
            self._by_feature.discard(feature, group)
        self.held_bytes -= _bytes(len(features))

    def is_similar(self, group: int, features: Sequence[int], *, is_opening: bool) -> bool:
        """Whether the frame of a group is a variant of the one with these ``feature_keys``."""
        held = self._features.get(group, ())
        shared = len(set(features).intersection(held))
        whole = len(features) + len(held)
        return bool(whole) and are_similar(shared, 2 * shared / whole, is_opening)

    def most_similar(
        self, features: Sequence[int], *, is_opening: bool, accepts: Callable[[int], bool] = lambda _: True
    ) -> int | None:
        """The group whose frame is most similar to the given one, the latest on a tie; None if none is similar.

        Args:
            features: ``feature_keys`` of the given frame.
            is_opening: As in ``Frame``.
            accepts: Whether a group may be chosen.
        """
        best, best_share = None, 0.0
        for group, count in self._by_feature.times(features, _GROUPS_PER_FEATURE).items():
            # Without its own features no group is similar that has few in common.
            if not are_similar(count, 2 * count / len(features), is_opening):
                continue
            share = 2 * count / (len(features) + len(self._features[group]))
            if share > best_share and are_similar(count, share, is_opening) and accepts(group):
                best, best_share = group, share
        return best


def feature_keys(tenant: str, frame: Frame) -> Sequence[int]:
    """Feature hashes per tenant and kind of frame. Sorted, so that ties are resolved the same way."""
    return tuple(hash((tenant, frame.is_opening, feature)) for feature in sorted(frame.features))


def _bytes(features: int) -> int:
    return _GROUP_BYTES + features * (_FEATURE_BYTES + POSTING_BYTES)


_PART_BYTES = 330
"""Memory of a part besides its strings: object, table entry, count."""

_CALL_BYTES = 120
_Part = TypeVar("_Part", bound=Message | Tool)


class SharedTexts:
    """Holds equal messages and tools of prompts once, with reference counts."""

    def __init__(self) -> None:
        self._messages: _CountedParts[Message] = _CountedParts()
        self._tools: _CountedParts[Tool] = _CountedParts()

    @property
    def held_bytes(self) -> int:
        """Approximate memory of all parts."""
        return self._messages.held_bytes + self._tools.held_bytes

    def share(self, text: PromptText) -> tuple[PromptText, int]:
        """The same prompt built from shared parts, and their bytes. Each call needs one ``release``."""
        messages = [self._messages.share(message) for message in text.messages]
        tools = [self._tools.share(tool) for tool in text.tools]
        size = sum([each.size for each in messages]) + sum([each.size for each in tools])
        shared = tuple([each.part for each in messages]), tuple([each.part for each in tools])
        return PromptText(*shared, text.arguments, text.has_ids), size

    def release(self, text: PromptText) -> None:
        """Release the parts of a prompt."""
        for message in text.messages:
            self._messages.release(message)
        for tool in text.tools:
            self._tools.release(tool)


class _CountedParts(Generic[_Part]):
    def __init__(self) -> None:
        self.held_bytes = 0
        self._held: dict[_Part, _HeldPart[_Part]] = {}

    def share(self, part: _Part) -> "_HeldPart[_Part]":
        held = self._held.get(part)
        if held is None:
            held = self._held[part] = _HeldPart(part, part_bytes(part))
            self.held_bytes += held.size
        held.holders += 1
        return held

    def release(self, part: _Part) -> None:
        held = self._held[part]
        held.holders -= 1
        if not held.holders:
            del self._held[part]
            self.held_bytes -= held.size


class _HeldPart(Generic[_Part]):
    __slots__ = ("holders", "part", "size")

    def __init__(self, part: _Part, size: int) -> None:
        self.part = part
        self.size = size
        self.holders = 0


def part_bytes(part: Message | Tool) -> int:
    """Approximate memory of a message or a tool."""
    if isinstance(part, Tool):
        return _PART_BYTES + getsizeof(part.raw) + getsizeof(part.canonical)
    size = _PART_BYTES + getsizeof(part.text) + getsizeof(part.reasoning)
    for call in part.calls:
        size += _CALL_BYTES + getsizeof(call.arguments) + getsizeof(call.canonical)
    return size


def text_bytes(text: PromptText) -> int:
    """Approximate memory of a prompt without shared parts."""
    return sum(map(part_bytes, text.messages)) + sum(map(part_bytes, text.tools))
