"""A conversation as a sequence of messages, and the keys by which its turns find each other.

System messages are no part of it: they may change from turn to turn, and stand anywhere. The numbers here hold within
one process.
"""

from collections.abc import Hashable, Iterator

from gateway.explain.prompt_text import LEADING_ROLES, PROMPT_ROLE, Message, PromptText
from gateway.explain.reference.kept import KeptRequest

_TELLING_CHARACTERS = 32
"""A reply of this length is known again without the message in front of it."""

_TELLING_THREAD_CHARACTERS = 120
"""Messages of so much text are not the same by chance, as greetings are."""

_BRANCHES = 8
_TAIL_MESSAGES = 64
_REPLIES = 4


class Thread:
    """The messages of one prompt.

    Attributes:
        digests: A number for each message.
        chain: A number for each beginning: of the first message, the first two, and so on.
    """

    __slots__ = ("_messages", "_root", "_tenant", "chain", "digests")

    def __init__(self, tenant: str, text: PromptText, skeleton: int | None) -> None:
        """``skeleton`` is the frame's: a first message alone, such as a greeting, tells a conversation only with it."""
        self._tenant = tenant
        self._root = skeleton
        self._messages = [each for each in text.messages if each.role not in LEADING_ROLES and each.role != PROMPT_ROLE]
        self.digests = tuple(map(_digest, self._messages))
        chain: list[int] = []
        for digest in self.digests:
            chain.append(hash((chain[-1] if chain else 0, digest)))
        self.chain = tuple(chain)

    def is_telling(self, begin: int, end: int) -> bool:
        """Whether messages are more than what many conversations have in common."""
        return sum(len(each.text) for each in self._messages[begin:end]) >= _TELLING_THREAD_CHARACTERS

    def common_messages(self, digests: tuple[int, ...]) -> int:
        """How many messages from the first on are those of another prompt."""
        count = 0
        for one, other in zip(self.digests, digests, strict=False):
            if one != other:
                break
            count += 1
        return count

    def keys(self, kept: KeptRequest, continues: bool) -> Iterator[int]:
        """Under what a request is kept. ``continues``: an earlier turn of its conversation is known."""
        count = len(self.digests)
        if not count:
            return
        yield self.whole(count)
        for text in [reply.text for reply in kept.replies[:_REPLIES] if reply.text]:
            digest = _digest(Message("assistant", text))
            yield self._key("answered", hash((self.chain[-1], digest)))
            yield self._key("pair", self.digests[-1], digest)
            if len(text) >= _TELLING_CHARACTERS:
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
        """Key of later turns of a conversation that has the same first ``length`` messages, and others then."""
        return self._key("branch", self.chain[length - 1])

    def tails(self) -> Iterator[tuple[int, bool]]:
        """Keys of requests whose last messages, or whose reply, stand anywhere in this prompt, the last ones first; and
        whether they are telling."""
        for at in range(len(self.digests) - 1, max(-1, len(self.digests) - 1 - _TAIL_MESSAGES), -1):
            if at:
                yield self._key("pair", self.digests[at - 1], self.digests[at]), self.is_telling(at - 1, at + 1)
            message = self._messages[at]
            if message.role == "assistant" and len(message.text) >= _TELLING_CHARACTERS:
                yield self._key("reply", self.digests[at]), self.is_telling(at, at + 1)

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
