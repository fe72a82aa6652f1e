"""What a rule is: it detects what is to be changed in a prompt, and ``applied`` changes it. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from gateway.canon.edits import Edit
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint

Fields = Mapping[str, Any]
"""A parsed request, only to be read: ``messages`` and ``tools`` of a chat, ``prompt`` of a completion, the rest.

``messages`` is a list of objects with a string ``role``; everything else in it may be whatever a client sends.
"""


def _nothing(_: bytes) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class RuleContext:
    """What a rule may know besides the prompt.

    Attributes:
        now: Unix seconds.
        endpoint: Which API was called.
        owner: Whose context blocks may be put back: the tenant, and what else keeps conversations apart, such as the
            session.
        tenant: For whom: what is remembered of texts to save work is remembered for one tenant alone, because the time
            it saves tells that a text was seen before.
        recall: The context block that was put behind a message, by the key of the conversation up to there; None if
            there was none, or nobody remembers.
        count_tokens: How many tokens a text has; None where no tokenizer can tell.
        context_limit: Most tokens of prompt and answer the model takes; 0 if unknown.
        behind_tokens: Tokens to be reckoned with for what a later rule puts behind messages of the user and of tools.
    """

    now: float
    endpoint: Endpoint = Endpoint.CHAT
    owner: str = ""
    tenant: str = ""
    recall: Callable[[bytes], str | None] = _nothing
    count_tokens: Callable[[str], int] | None = None
    context_limit: int = 0
    behind_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Detected:
    """What a rule found.

    Attributes:
        edits: What it changes; empty for nothing.
        remember: Context blocks by key, for ``RuleContext.recall`` of later turns.
        context_lost: As in ``Canonicalized``.
        cut_messages: Messages that are left out of a conversation that became too long.
    """

    edits: Sequence[Edit] = ()
    remember: Mapping[bytes, str] = field(default_factory=dict)
    context_lost: bool = False
    cut_messages: int = 0


NOTHING = Detected()


class Rule(Protocol):
    """One rule. Its settings are given to it when it is built."""

    name: ClassVar[RuleName]

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """What it changes. Applied once, it finds nothing more: ``detect(applied(fields, edits))`` has no edits."""
        ...
