"""What canonicalization may do to a prompt, and what it did."""

from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

_SHOWN_CHARS = 60

_E = TypeVar("_E", bound=StrEnum)


class RuleName(StrEnum):
    """The rules, in the order in which they are applied. The value is the name in the configuration and in metrics."""

    UNICODE = "unicode"
    WHITESPACE = "whitespace"
    PATTERN = "pattern"
    ROLE_ORDER = "role-order"
    TOOL_ORDER = "tool-order"
    JSON_KEYS = "json-keys"
    HISTORY_TRIM = "history-trim"
    DYNAMIC_SUFFIX = "dynamic-suffix"


class RuleMode(StrEnum):
    """What is done with a rule."""

    OFF = "off"
    """Nothing."""
    OBSERVE = "observe"
    """Nothing is changed; what the rule would have saved is worked out beside the gateway."""
    APPLY = "apply"
    """Prompts are changed by it."""


RuleModes = dict[RuleName, RuleMode]
"""Modes of some rules."""


def read_modes(value: Any) -> Any:
    """Modes as they stand in a file, such as ``{"dynamic-suffix": "apply"}``.

    Raises:
        ValueError: there is no such rule or mode; the message says what there is.
    """
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping of rules to modes, such as {dynamic-suffix: apply}")
    return {
        _choice(RuleName, rule, "rule"): _choice(RuleMode, mode, f"mode for {rule}") for rule, mode in value.items()
    }


def _choice(choices: type[_E], value: Any, what: str) -> _E:
    names = [str(choice) for choice in choices]
    if value in names:
        return choices(value)
    close = get_close_matches(str(value).lower().replace("_", "-"), names, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ValueError(f"expected as a {what} one of {', '.join(names)}, got {str(value)[:_SHOWN_CHARS]!r}{hint}")


ALL_RULES = "all"
"""Stands for all observed rules together, where rules are told of: two faults in one prompt hide each other's cost."""


class RuleOutcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one rule did, or would have done, to one request.

    Attributes:
        rule: Name of the rule, or ``ALL_RULES``.
        mode: ``observe``: with it, against the request as it was sent; ``apply``: as it was sent, against without it.
        edits: How many places it changes.
        saved_tokens: Prompt tokens that were computed before, and would not be reused without the rule.
        lost_tokens: Tokens that would be reused without the rule only. One of the two is 0.
    """

    rule: str
    mode: RuleMode
    edits: int
    saved_tokens: int
    lost_tokens: int


class EditShown(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One edit, as it is kept and shown.

    Attributes:
        rule: Name of the rule.
        mode: Whether it was made or only observed.
        what: What was done, as a code: see the rule.
        path: Where, in the API's dotted form: ``messages[0].content``.
        said: The same for people, in one sentence. Holds no text of the prompt but names of tools and keys.
        tokens: By how many tokens it makes the prompt longer (negative: shorter); None if nobody can tell.
        before: The text that was there, masked; empty for what is no text.
        after: The text in its place, masked; likewise.
    """

    rule: str
    mode: RuleMode
    what: str
    path: str
    said: str
    tokens: int | None = None
    before: str = ""
    after: str = ""


class Canonicalized(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What canonicalization has to do with a request that was answered, as it is handed over to be explained.

    Attributes:
        modes: Mode of every rule for this request, in the order of ``RuleName``.
        asked: The body as the client sent it, JSON, if it was changed; empty if it was not, or is not to be looked at.
        context_lost: Whether blocks that stood in earlier turns of the conversation could not be put back, because
            nobody remembers them.
        owner: Whose context blocks may be put back into it: the tenant, and what else keeps conversations apart.
    """

    modes: tuple[RuleMode, ...] = ()
    asked: bytes = b""
    context_lost: bool = False
    owner: str = ""
