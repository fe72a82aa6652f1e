"""Kept requests, and the keys by which they are found: conversations, skeletons, similar frames.

``Thread`` is a conversation as a sequence of message digests, without system messages: these may change from turn to
turn, and occur anywhere. Digests are valid within one process only. ``Groups`` finds requests with a similar frame.
"""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Literal

import msgspec

from gateway.core.explanation import ReplyChoice, SpaceKey
from gateway.explain.prompt_text import LEADING_ROLES, PROMPT_ROLE, Message, PromptText
from gateway.explain.reference.frame import Frame, are_similar
from gateway.explain.reference.shared_texts import SharedTexts, message_digest

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
    """

    reference: KeptRequest
    chosen_by: "ChosenBy"
    same_conversation: bool
    equal: int


_OUTSIDE = LEADING_ROLES | {PROMPT_ROLE}
"""Roles of messages that belong to no conversation."""

_ANSWERED = 0x5BD1E9955BD1E995
_BRANCH = 0x27D4EB2F165667C5
"""What distinguishes the keys of a prefix from that of a whole prompt, which is the prefix's digest itself."""


class Thread:
    """The messages of one prompt.

    Attributes:
        digests: Digest of each message.
        chain: Digest of each prefix: of the first message, the first two, and so on.
    """

    __slots__ = ("_characters", "_messages", "_single", "_tenant", "chain", "digests")

    def __init__(
        self,
        tenant: str,
        text: PromptText,
        skeleton: int | None,
        digests_of: Callable[[Iterable[Message]], list[int]] | None = None,
    ) -> None:
        """Read the messages of a prompt.

        Args:
            tenant: Its tenant.
            text: The prompt.
            skeleton: The frame's: a single first message, such as a greeting, is ambiguous without it.
            digests_of: As ``SharedTexts.digests``.
        """
        self._tenant = tenant
        self._messages = [each for each in text.messages if each.role not in _OUTSIDE]
        self._characters: list[int] = []
        self.digests = tuple((digests_of or SharedTexts().digests)(self._messages))
        self.chain = tuple(accumulate(self.digests, _chained, initial=hash(tenant)))[1:]
        self._single = hash((self.chain[0], skeleton)) if self.chain else 0

    def is_distinctive(self, begin: int, end: int) -> bool:
        """Whether messages have enough text to identify a conversation."""
        if not self._characters:
            # Index n: characters of the first n messages.
            self._characters = list(accumulate((len(each.text) for each in self._messages), initial=0))
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

    def keys(self, kept: "KeptRequest", continues: bool) -> list[int]:
        """Index keys of a request. ``continues``: an earlier turn of its conversation is kept."""
        count = len(self.digests)
        if not count:
            return []
        keys = [self.whole(count)]
        for text in [reply.text for reply in kept.replies[:_REPLIES] if reply.text]:
            digest = message_digest(Message("assistant", text))
            keys.append(_chained(self.chain[-1], digest) ^ _ANSWERED)
            keys.append(self._key("pair", self.digests[-1], digest))
            if len(text) >= _DISTINCTIVE_REPLY_CHARACTERS:
                keys.append(self._key("reply", digest))
        if count > 1:
            keys.append(self._key("pair", self.digests[-2], self.digests[-1]))
        if continues:
            keys += [link ^ _BRANCH for link in self.chain[max(2, count - _BRANCHES) - 1 : count - 1]]
        return keys

    def whole(self, length: int) -> int:
        """Key of requests whose whole prompt is the first ``length`` messages."""
        return self.chain[length - 1] if length > 1 else self._single

    def answered(self, length: int) -> int:
        """Key of requests whose prompt and reply are the first ``length`` messages."""
        return self.chain[length - 1] ^ _ANSWERED

    def branch(self, length: int) -> int:
        """Key of later turns of a conversation with the same first ``length`` messages."""
        return self.chain[length - 1] ^ _BRANCH

    def lengths(self, held: Container[int], most: int) -> Iterator[int]:
        """The lengths from ``most`` down for which a ``whole``, ``answered`` or ``branch`` may be held."""
        for length in range(most, 1, -1):
            link = self.chain[length - 1]
            if link in held or link ^ _ANSWERED in held or link ^ _BRANCH in held:
                yield length
        if most > 0:
            yield 1

    def tails(self) -> Iterator[tuple[int, int, int]]:
        """Keys of requests whose last messages or reply occur anywhere in this prompt, last first; and the begin and
        end of these messages."""
        for at in range(len(self.digests) - 1, max(-1, len(self.digests) - 1 - _TAIL_MESSAGES), -1):
            if at:
                yield hash((self._tenant, "pair", self.digests[at - 1], self.digests[at])), at - 1, at + 1
            message = self._messages[at]
            if message.role == "assistant" and len(message.text) >= _DISTINCTIVE_REPLY_CHARACTERS:
                yield self._key("reply", self.digests[at]), at, at + 1

    def _key(self, *parts: Hashable) -> int:
        return hash((self._tenant, *parts))


def _chained(before: int, digest: int) -> int:
    """Digest of a prefix that is longer by one message."""
    return hash((before, digest))


ChosenBy = Literal["session", "conversation", "skeleton", "similar"]

POSTING_BYTES = 150
"""Approximate memory of a number under a key, and of the key: most keys hold a single number, others a dict. Measured
are 90 to 146."""


class Postings(dict[int, int | dict[int, None]]):
    """Numbers by key, in insertion order. A single number is held without a container."""

    def add(self, keys: Iterable[int], number: int) -> None:
        """Append a number to each of the keys."""
        setdefault = self.setdefault
        for key in keys:
            held = setdefault(key, number)
            if held is number:
                continue
            if isinstance(held, dict):
                held[number] = None
            elif held != number:
                self[key] = {held: None, number: None}

    def discard(self, keys: Iterable[int], number: int) -> None:
        """Remove a number from each of the keys; no effect where it is absent."""
        for key in keys:
            held = self.get(key)
            if isinstance(held, dict):
                held.pop(number, None)
                if not held:
                    del self[key]
            elif held == number:
                del self[key]

    def times(self, keys: Iterable[int], count: int) -> dict[int, int]:
        """How many of the keys hold each number among their last ``count``, in the order of the keys."""
        times: dict[int, int] = {}
        # Most keys hold nothing.
        for held in [each for each in map(self.get, keys) if each is not None]:
            for number in islice(reversed(held), count) if isinstance(held, dict) else (held,):
                times[number] = times.get(number, 0) + 1
        return times

    def latest(self, key: int, count: int) -> Sequence[int]:
        """The last ``count`` numbers of a key, latest first."""
        held = self.get(key)
        if held is None:
            return ()
        return tuple(islice(reversed(held), count)) if isinstance(held, dict) else (held,)


_GROUP_BYTES = 600

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
        self._by_feature.add(features, group)
        self.held_bytes += _bytes(len(features))

    def remove(self, group: int) -> None:
        """Remove a group; no effect if it is absent."""
        features = self._features.pop(group, None)
        if features is None:
            return
        self._by_feature.discard(features, group)
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
    own = hash((tenant, frame.is_opening))
    return tuple([own ^ feature for feature in sorted(frame.features)])


def _bytes(features: int) -> int:
    return _GROUP_BYTES + features * POSTING_BYTES
