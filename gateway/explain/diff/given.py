"""A pair of prompts to compare, and helpers of the comparison."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.explanation import ReplyChoice
from gateway.explain.prompt_text import PromptText

_OPENING_MESSAGES = 6


@dataclass(frozen=True, slots=True)
class PromptPair:
    """Two prompts to compare.

    Attributes:
        before: The earlier prompt.
        after: The later one.
        before_source: Client family of the earlier.
        after_source: Client family of the later.
        same_conversation: Whether the later prompt continues the conversation of the earlier.
        replies: Replies of the engine to the earlier.
    """

    before: PromptText
    after: PromptText
    before_source: str
    after_source: str
    same_conversation: bool
    replies: Sequence[ReplyChoice]

    @property
    def sources_differ(self) -> bool:
        """Whether the prompts come from two client families."""
        return self.before_source != self.after_source

    @property
    def between(self) -> str:
        """Both client families, for the end of a sentence; empty if one family sent both prompts."""
        return f" ({shown(self.after_source)} against {shown(self.before_source)})" if self.sources_differ else ""


def shown(name: str) -> str:
    """A client's name made safe for a sentence: printable, one line, at most 60 characters."""
    clean = "".join(character if character.isprintable() else "?" for character in name[:61])
    return clean if len(clean) <= 60 else clean[:59] + "…"


def counted(count: int, noun: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def questions_in_front(text: PromptText) -> int:
    """Number of user messages directly after the leading ones, among the prompt's first six messages."""
    count = 0
    for message in text.messages[len(text.leading) : _OPENING_MESSAGES]:
        if message.role != "user":
            break
        count += 1
    return count
