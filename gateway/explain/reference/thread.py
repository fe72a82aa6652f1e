"""A conversation as a sequence of message digests, and the keys by which its turns are found.

System messages are not included: they may change from turn to turn, and occur anywhere. Digests are valid within one
process only.
"""

from collections.abc import Hashable, Iterator

from gateway.explain.prompt_text import LEADING_ROLES, PROMPT_ROLE, Message, PromptText
from gateway.explain.reference.kept import KeptRequest

_DISTINCTIVE_REPLY_CHARACTERS = 32
"""A reply of this length is recognized without the message before it."""

_DISTINCTIVE_CHARACTERS = 120
"""Messages with this much text are not equal by chance, as greetings are."""

_BRANCHES = 8
_TAIL_MESSAGES = 64
_REPLIES = 4


class Thread:
    """The messages of one prompt.

    Attributes:
        digests: Digest of each message.
        chain: Digest of each prefix: of the first message, the first two, and so on.
    """

    __slots__ = ("_messages", "_root", "_tenant", "chain", "digests")

    def __init__(self, tenant: str, text: PromptText, skeleton: int | None) -> None:
        """``skeleton`` is the frame's: a single first message, such as a greeting, is ambiguous without it."""
        self._tenant = tenant
        self._root = skeleton
        self._messages = [each for each in text.messages if each.role not in LEADING_ROLES and each.role != PROMPT_ROLE]
        self.digests = tuple(map(_digest, self._messages))
        chain: list[int] = []
        for digest in self.digests:
            chain.append(hash((chain[-1] if chain else 0, digest)))
        self.chain = tuple(chain)

    def is_distinctive(self, begin: int, end: int) -> bool:
        """Whether messages have enough text to identify a conversation."""
        return sum(len(each.text) for each in self._messages[begin:end]) >= _DISTINCTIVE_CHARACTERS

    def common_messages(self, digests: tuple[int, ...]) -> int:
        """Number of equal messages from the first on."""
        count = 0
        for one, other in zip(self.digests, digests, strict=False):
            if one != other:
                break
            count += 1
        return count

    def keys(self, kept: KeptRequest, continues: bool) -> Iterator[int]:
        """Index keys of a request. ``continues``: an earlier turn of its conversation is kept."""
        count = len(self.digests)
        if not count:
            return
        yield self.whole(count)
        for text in [reply.text for reply in kept.replies[:_REPLIES] if reply.text]:
            digest = _digest(Message("assistant", text))
            yield self._key("answered", hash((self.chain[-1], digest)))
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
        root = self._root if length == 1 else None
        return self._key("whole", self.chain[length - 1], root)

    def answered(self, length: int) -> int:
        """Key of requests whose prompt and reply are the first ``length`` messages."""
        return self._key("answered", self.chain[length - 1])

    def branch(self, length: int) -> int:
        """Key of later turns of a conversation with the same first ``length`` messages."""
        return self._key("branch", self.chain[length - 1])

    def tails(self) -> Iterator[tuple[int, bool]]:
        """Keys of requests whose last messages or reply occur anywhere in this prompt, last first; and whether those
        messages are distinctive."""
        for at in range(len(self.digests) - 1, max(-1, len(self.digests) - 1 - _TAIL_MESSAGES), -1):
            if at:
                yield self._key("pair", self.digests[at - 1], self.digests[at]), self.is_distinctive(at - 1, at + 1)
            message = self._messages[at]
            if message.role == "assistant" and len(message.text) >= _DISTINCTIVE_REPLY_CHARACTERS:
                yield self._key("reply", self.digests[at]), self.is_distinctive(at, at + 1)

    def _key(self, *parts: Hashable) -> int:
        return hash((self._tenant, *parts))


def _digest(message: Message) -> int:
    return hash(
        (
            message.role,
            message.text.strip(),
            message.name,
            message.others,
            tuple((call.name, call.canonical) for call in message.calls),
        )
    )
