"""What two prompts are compared by."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.core.explanation import ReplyChoice
from gateway.explain.prompt_text import PromptText


@dataclass(frozen=True, slots=True)
class PromptPair:
    """Two prompts and what is known of them.

    Attributes:
        before: The earlier prompt.
        after: The later one.
        before_source: Client family of the earlier.
        after_source: Client family of the later.
        same_conversation: Whether the later is meant to go on where the earlier ended.
        replies: What the engine answered to the earlier.
    """

    before: PromptText
    after: PromptText
    before_source: str
    after_source: str
    same_conversation: bool
    replies: Sequence[ReplyChoice]

    @property
    def sources_differ(self) -> bool:
        """Whether two client families are compared."""
        return self.before_source != self.after_source

    @property
    def between(self) -> str:
        """Whose prompts are compared, for the end of a sentence; empty if one family sent both."""
        return f" ({shown(self.after_source)} against {shown(self.before_source)})" if self.sources_differ else ""


def shown(name: str) -> str:
    """A name that somebody gave, as it may stand in a sentence: printable, on one line, not long."""
    clean = "".join(character if character.isprintable() else "?" for character in name[:61])
    return clean if len(clean) <= 60 else clean[:59] + "…"


def counted(count: int, noun: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
