"""Interface of canonicalization rules: ``Rule.detect`` finds the edits of a prompt, and ``applied`` makes them. Pure.

The edited copy shares all unchanged objects with the original.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import msgspec

from gateway.core.canonical import RuleName
from gateway.core.json_edit import Path
from gateway.core.prompt import LaterSystem
from gateway.core.request import Endpoint


@dataclass(frozen=True, slots=True)
class Edit:
    """One change.

    Attributes:
        rule: The rule that makes the change.
        what: Code of the change; each rule documents its own codes.
        path: Path from the request's root to the changed text, list or object.
        before: The old value: the replaced piece of a text, or the whole value.
        after: The new value; ``REMOVED`` deletes the member.
        start: Offset of the piece's first character in its text; None if the whole value is replaced.
        summary: The change in one sentence for people. Quotes names of tools and keys, but no other text of the prompt.
    """

    rule: RuleName
    what: str
    path: Path
    before: Any = field(repr=False)
    after: Any = field(repr=False)
    start: int | None = None
    summary: str = ""

    @property
    def place(self) -> str:
        """The path in the API's dotted form, such as ``messages[0].content[1].text``."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")


class _RemovedType:
    """The type of ``REMOVED``."""

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Any = _RemovedType()
"""Used as ``after``: the member is removed from its object."""


def applied(fields: Mapping[str, Any], edits: Iterable[Edit]) -> Mapping[str, Any]:
    """The request's fields with all edits of one rule applied.

    Args:
        fields: The request's fields; not modified.
        edits: Pieces of one text must not overlap, and no path may lead into a value that another edit replaces.

    Raises:
        KeyError, IndexError: a path does not exist.
    """
    texts: dict[Path, list[Edit]] = {}
    values: list[tuple[Path, Any]] = []
    for edit in edits:
        if edit.start is None:
            values.append((edit.path, edit.after))
        else:
            texts.setdefault(edit.path, []).append(edit)
    values += [(path, _edited(value_at(fields, path), pieces)) for path, pieces in texts.items()]
    changed: Mapping[str, Any] = _changed(fields, values, 0) if values else fields
    return changed


def value_at(value: Any, path: Path) -> Any:
    """The value at a path.

    Raises:
        KeyError, IndexError: the path does not exist.
    """
    for step in path:
        value = value[step]
    return value


def _edited(text: str, pieces: Sequence[Edit]) -> str:
    out: list[str] = []
    done = 0
    for edit in sorted(pieces, key=lambda each: each.start or 0):
        start = edit.start or 0
        out += (text[done:start], edit.after)
        done = start + len(edit.before)
    return "".join(out) + text[done:]


def _changed(value: Any, changes: Sequence[tuple[Path, Any]], depth: int) -> Any:
    """A copy of a parsed value with new values at some paths; shares everything else with the original."""
    if len(changes[0][0]) == depth:
        return changes[0][1]
    inside: dict[str | int, list[tuple[Path, Any]]] = {}
    for path, after in changes:
        inside.setdefault(path[depth], []).append((path, after))
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    for step, deeper in inside.items():
        after = _changed(copy[step], deeper, depth + 1)  # type: ignore[index]
        if after is REMOVED:
            del copy[step]  # type: ignore[arg-type]
        else:
            copy[step] = after  # type: ignore[index]
    return copy


Fields = Mapping[str, Any]
"""A parsed request, read-only: ``messages`` and ``tools`` of a chat, ``prompt`` of a completion, the rest.

``messages`` is a list of objects with a string ``role``; all other values are unchecked client input.
"""


def _nothing(_: bytes) -> str | None:
    return None


class RuleContext(msgspec.Struct, frozen=True):
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
        later_system: How the model's template takes system messages inside a conversation.
        behind_tokens: Tokens to reserve per message of the user or a tool for a block that a later rule appends.
    """

    now: float
    endpoint: Endpoint = Endpoint.CHAT
    owner: str = ""
    tenant: str = ""
    recall: Callable[[bytes], str | None] = _nothing
    count_tokens: Callable[[str], int] | None = None
    context_limit: int = 0
    later_system: LaterSystem = "joined"
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
