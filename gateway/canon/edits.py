"""Changes to a prompt: what they are, and how they are made. Copies share with the given whatever is not changed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.core.canonical import RuleName
from gateway.core.json_edit import Path


@dataclass(frozen=True, slots=True)
class Edit:
    """One change.

    Attributes:
        rule: Whose.
        what: What is done, as a code: see the rule.
        path: From the request's root to the text, list or object that it changes; without a last step, to nothing.
        before: What stands there: the replaced piece of a text, or the whole value.
        after: What takes its place; ``REMOVED``: nothing, the member itself goes.
        start: Of a piece of a text, the offset of its first character; None where the whole value is replaced.
        said: What is done, in one sentence for people. Holds no text of the prompt but names of tools and keys.
    """

    rule: RuleName
    what: str
    path: Path
    before: Any = field(repr=False)
    after: Any = field(repr=False)
    start: int | None = None
    said: str = ""

    @property
    def place(self) -> str:
        """Its path in the API's dotted form, such as ``messages[0].content[1].text``."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")


class _RemovedType:
    """The type of ``REMOVED``."""

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Any = _RemovedType()
"""In place of a value: the member of an object is taken out."""


def applied(fields: Mapping[str, Any], edits: Iterable[Edit]) -> Mapping[str, Any]:
    """A request's fields with all edits of one rule made.

    Args:
        fields: The request's fields; not changed.
        edits: Pieces of one text do not overlap, and no edit's path leads into what another one replaces as a whole.

    Raises:
        KeyError, IndexError: a path leads nowhere.
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
    """What stands at a path.

    Raises:
        KeyError, IndexError: nothing does.
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
    """A copy of a parsed value with other values at some paths, sharing everything else with it."""
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
