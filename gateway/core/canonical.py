"""Canonicalization rules, their modes and effects; personal data found in requests: kind and place, never the text."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

import msgspec


@dataclass(frozen=True, slots=True)
class PersonalFinding:
    """One piece of personal data.

    Attributes:
        kind: What it is, such as ``email``.
        path: In which field of the request, in the API's dotted form (``messages[0].content[1].text``).
        start: Offset of its first character there.
        length: Its length in characters.
    """

    kind: str
    path: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class FindingReport:
    """Findings at one place of the prompts of one prefix space.

    Attributes:
        finding: The place and the kind.
        requests: Requests that had it.
        shared: Whether prompts of several conversations have it in common: it stands in a shared prefix.
    """

    finding: PersonalFinding
    requests: int
    shared: bool


_SHOWN_CHARS = 60

_E = TypeVar("_E", bound=StrEnum)


class RuleName(StrEnum):
    """The rules, in the order in which they are applied. The value is the name in the configuration and in metrics."""

    UNICODE = "unicode"
    WHITESPACE = "whitespace"
    INNER_SPACES = "inner-spaces"
    DASH_STYLE = "dash-style"
    JSON_TEXT = "json-text"
    PATTERN = "pattern"
    DOCUMENT_ORDER = "document-order"
    SYSTEM_ORDER = "system-order"
    ROLE_ORDER = "role-order"
    INLINE_SYSTEM = "inline-system"
    TOOL_ORDER = "tool-order"
    JSON_KEYS = "json-keys"
    HISTORY_TRIM = "history-trim"
    DYNAMIC_SUFFIX = "dynamic-suffix"


OPT_IN = frozenset({RuleName.INNER_SPACES, RuleName.DASH_STYLE, RuleName.JSON_TEXT, RuleName.SYSTEM_ORDER})
"""Rules that are off unless a configuration names them: they change how texts look, or what is read first."""


class RuleMode(StrEnum):
    """The mode of a rule."""

    OFF = "off"
    """The rule is off."""
    OBSERVE = "observe"
    """Nothing is changed; the explain worker computes what the rule would have saved."""
    APPLY = "apply"
    """The rule changes prompts."""


RuleModes = dict[RuleName, RuleMode]
"""Modes, by rule."""


def default_mode(rule: RuleName, dialect: str = "") -> RuleMode:
    """The mode of a rule that no configuration names, for a request's ``dialect``."""
    if rule is RuleName.INLINE_SYSTEM and dialect == "messages":
        return RuleMode.APPLY  # it has to be converted in some way: this one keeps the prefix
    return RuleMode.OFF if rule in OPT_IN else RuleMode.OBSERVE


def read_modes(value: Any) -> Any:
    """Parse modes, such as ``{"dynamic-suffix": "apply"}``.

    Raises:
        ValueError: unknown rule or mode; the message lists the known ones.
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
"""Name for all observed rules together in reports: two faults in one prompt hide each other's cost."""


class RuleOutcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one rule did, or would have done, to one request.

    Attributes:
        rule: Name of the rule, or ``ALL_RULES``.
        mode: ``observe``: the request with the rule is compared with the request as sent; ``apply``: the request as
            sent is compared with the request without the rule.
        edits: Number of edits.
        saved_tokens: Prompt tokens that are reused only with the rule.
        lost_tokens: Prompt tokens that are reused only without the rule. One of the two is 0.
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
        what: Kind of the edit, as a code: see the rule.
        path: Its place, in the API's dotted form: ``messages[0].content``.
        said: Description in one sentence. Holds no text of the prompt but names of tools and keys.
        tokens: Change of the prompt's length in tokens (negative: shorter); None without a tokenizer.
        before: The old text, masked; empty if the value is not text.
        after: The new text, masked; empty if the value is not text.
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
    """The part of a request record about canonicalization.

    Attributes:
        modes: Mode of every rule for this request, in the order of ``RuleName``.
        asked: The client's body, JSON; empty if it was not changed, or if the record holds no text.
        context_lost: Whether blocks of earlier turns of the conversation could not be restored, because they are not
            stored any more.
        owner: Key of the context blocks that may be restored: tenant and conversation.
        blocks: Context blocks in the body as it was sent on: index of the message, and the number of characters at the
            end of its text, for each message that has one, in order.
    """

    modes: tuple[RuleMode, ...] = ()
    asked: bytes = b""
    context_lost: bool = False
    owner: str = ""
    blocks: tuple[tuple[int, int], ...] = ()
