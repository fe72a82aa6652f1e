"""Interface of a canonicalization rule: it detects edits, and ``edits.applied`` makes them. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from gateway.canon.edits import Edit
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint

Fields = Mapping[str, Any]
"""A parsed request, read-only: ``messages`` and ``tools`` of a chat, ``prompt`` of a completion, the rest.

``messages`` is a list of objects with a string ``role``; all other values are unchecked client input.
"""


def _nothing(_: bytes) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class RuleContext:
    """Input of a rule besides the prompt.

    Attributes:
        now: Unix seconds.
        endpoint: The API that was called.
        owner: Owner of the context blocks that may be put back: the tenant, and other parts that keep conversations
            apart, such as the session.
        tenant: Caches of findings are kept per tenant, because a shorter response time would reveal to one tenant that
            another one sent the same text.
        recall: Returns the context block that was put behind a message, by the key of the conversation up to that
            message; None if there is none.
        count_tokens: Counts the tokens of a text; None without a tokenizer.
        context_limit: Maximum number of tokens of prompt and answer; 0 if unknown.
        behind_tokens: Tokens to reserve per message of the user or a tool for a block that a later rule appends.
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
    """Result of a rule.

    Attributes:
        edits: The changes; may be empty.
        remember: Context blocks by key, to be stored for ``RuleContext.recall`` of later turns.
        context_lost: See ``Canonicalized``.
        cut_messages: Number of messages removed from a conversation that became too long.
    """

    edits: Sequence[Edit] = ()
    remember: Mapping[bytes, str] = field(default_factory=dict)
    context_lost: bool = False
    cut_messages: int = 0


NOTHING = Detected()


class Rule(Protocol):
    """One rule. It gets its settings in its constructor."""

    name: ClassVar[RuleName]

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """Find the edits. Idempotent: ``detect(applied(fields, edits))`` finds no more edits."""
        ...
