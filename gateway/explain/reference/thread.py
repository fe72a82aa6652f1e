"""A conversation as a sequence of message digests, and whether one prompt continues another.

System messages are left out: these may change from turn to turn, and occur anywhere. Digests are valid within one
process only.
"""

from collections.abc import Iterable
from itertools import accumulate

from gateway.core.explanation import ReplyChoice
from gateway.explain.prompt_text import LEADING_ROLES, PROMPT_ROLE, Message, PromptText

_DISTINCTIVE_REPLY_CHARACTERS = 32
"""A reply of this length is recognized without the message before it."""

_DISTINCTIVE_CHARACTERS = 120
"""Messages with this much text are not equal by chance, as greetings are."""

_TAIL_MESSAGES = 64
REPLIES = 4
"""Of more replies only so many are known again."""

_OUTSIDE = LEADING_ROLES | {PROMPT_ROLE}
"""Roles of messages that belong to no conversation."""


class Thread:
    """The messages of one prompt.

    Attributes:
        digests: Digest of each message.
    """

    __slots__ = ("_characters", "_messages", "_replies", "digests")

    def __init__(self, text: PromptText, replies: Iterable[ReplyChoice] = ()) -> None:
        """Read the messages of a prompt, and its replies."""
        self._messages = [each for each in text.messages if each.role not in _OUTSIDE]
        self._characters: list[int] = []
        self.digests = tuple(map(_digest, self._messages))
        texts = [reply.text for reply in replies if reply.text][:REPLIES]
        # Each with whether it is recognized by itself.
        self._replies = {
            _digest(Message("assistant", each)): len(each) >= _DISTINCTIVE_REPLY_CHARACTERS for each in texts
        }

    def is_distinctive(self, begin: int, end: int) -> bool:
        """Whether messages have enough text to identify a conversation."""
        if not self._characters:
            # Index n: characters of the first n messages.
            self._characters = list(accumulate((len(each.text) for each in self._messages), initial=0))
        return self._characters[end] - self._characters[begin] >= _DISTINCTIVE_CHARACTERS

    def common_messages(self, earlier: "Thread") -> int:
        """Number of equal messages from the first on."""
        count = 0
        for one, other in zip(self.digests, earlier.digests, strict=False):
            if one != other:
                break
            count += 1
        return count

    def continues(self, earlier: "Thread") -> bool:
        """Whether all messages of an earlier turn stand in front of others here."""
        return 0 < self.common_messages(earlier) == len(earlier.digests) < len(self.digests)

    def answers(self, earlier: "Thread") -> bool:
        """Whether a reply to an earlier turn, with all messages of it in front, stands here."""
        length = len(earlier.digests)
        return self.continues(earlier) and self.digests[length] in earlier._replies

    def end_of(self, earlier: "Thread") -> tuple[int, int] | None:
        """Begin and end of the last messages or the reply of an earlier turn, where they occur last; None if they do
        not: a history that was trimmed at the front."""
        last, pairs = earlier.digests[-1:], set[tuple[int, ...]]()
        pairs.update((*last, reply) for reply in earlier._replies if last)
        if len(earlier.digests) > 1:
            pairs.add(earlier.digests[-2:])
        for at in range(len(self.digests) - 1, max(-1, len(self.digests) - 1 - _TAIL_MESSAGES), -1):
            if at and self.digests[at - 1 : at + 1] in pairs:
                return at - 1, at + 1
            if earlier._replies.get(self.digests[at]) and self._messages[at].role == "assistant":
                return at, at + 1
        return None


def _digest(message: Message) -> int:
    calls = tuple([(call.name, call.canonical) for call in message.calls]) if message.calls else ()
    return hash((message.role, message.text.strip(), message.name, message.others, calls))
