"""Tools: in another order, added, removed, or described differently."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import DiffCause, text_cause
from gateway.explain.diff.difference_text import text_difference
from gateway.explain.diff.given import PromptPair, counted, shown
from gateway.explain.diff.json_path import JsonPlace, first_place
from gateway.explain.prompt_text import Tool

_AS_ANYWHERE = frozenset({Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID, Reason.WHITESPACE})


def tools_difference(given: PromptPair) -> Difference | None:
    """The first difference of two prompts' tools; None if they are the same to the letter."""
    before, after = given.before.tools, given.after.tools
    index = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0].raw != pair[1].raw), None)
    if index is None:
        if len(before) == len(after):
            return None
        index = min(len(before), len(after))
    one = before[index] if index < len(before) else None
    other = after[index] if index < len(after) else None
    if one is None or other is None:
        return _more_or_fewer(before, after, index, given)
    if one.canonical == other.canonical:
        return _changed(one, other, index, given)
    if Counter(tool.canonical for tool in before) == Counter(tool.canonical for tool in after):
        return _reordered(one, other, index, given)
    return _at_one_place(before, after, index, given)


def _at_one_place(before: Sequence[Tool], after: Sequence[Tool], index: int, given: PromptPair) -> Difference:
    """Two unlike tools at the same place: the same one changed, or others between."""
    one, other = before[index], after[index]
    if one.name == other.name:
        # Of tools without a name, or with the same, one may be new in front of the others.
        if one.canonical in _canonicals(after[index:]) and _count(after, one.name) > _count(before, one.name):
            return _more_or_fewer(before, after, index, given)
        if other.canonical in _canonicals(before[index:]) and _count(before, one.name) > _count(after, one.name):
            return _more_or_fewer(before, after, index, given)
        return _changed(one, other, index, given)
    is_kept, is_known = _count(after[index:], one.name), _count(before[index:], other.name)
    if is_kept and is_known:
        return _reordered(one, other, index, given)
    if not is_kept and not is_known and (place := _renamed(one, other)):
        return _told(given, "changed", place, index, f"tool {_name(one)} was renamed {_name(other)}")
    return _more_or_fewer(before, after, index, given)


def _more_or_fewer(before: Sequence[Tool], after: Sequence[Tool], index: int, given: PromptPair) -> Difference:
    added = list((Counter(map(_name, after)) - Counter(map(_name, before))).elements())
    removed = list((Counter(map(_name, before)) - Counter(map(_name, after))).elements())
    is_added = bool(added) and (
        not removed or index >= len(before) or _name(after[min(index, len(after) - 1)]) in added
    )
    names, detail = (
        (added, "added") if is_added else (removed or [_name(before[min(index, len(before) - 1)])], "removed")
    )
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return _told(given, detail, None, index, f"{counted(len(names), 'tool')} {detail}: {listed}")


def _reordered(one: Tool, other: Tool, index: int, given: PromptPair) -> Difference:
    return Difference(
        Reason.TOOLS_REORDERED,
        "tool_order",
        f"tools[{index}]",
        said=f"the same tools in another order: {_name(other)} stands where {_name(one)} stood{given.between}",
    )


def _changed(one: Tool, other: Tool, index: int, given: PromptPair) -> Difference:
    """Where a tool differs from itself."""
    place = first_place(_loaded(one), _loaded(other))
    if place is None:
        return _told(given, "changed", None, index, f"tool {_name(other)} changed")
    path = f"tools[{index}]{place.path}"
    field = place.path.removeprefix(".") or "the tool"
    if place.how == "key_order":
        said = f"tool {_name(other)}: {field} has the same keys in another order{given.between}"
        return Difference(Reason.TOOLS_REORDERED, "key_order", path, said=said)
    if isinstance(place.before, str) and isinstance(place.after, str):
        return _other_text(place.before, place.after, path, f"tool {_name(other)}: {field}", given)
    return _told(given, "changed", place, index, f"tool {_name(other)}: {field} {place.how}")


def _other_text(before: str, after: str, path: str, subject: str, given: PromptPair) -> Difference:
    cause: DiffCause = text_cause(before, after, is_template=False)
    reason = cause.reason if cause.reason in _AS_ANYWHERE else None
    found = text_difference(
        cause,
        reason or Reason.TOOLS_CHANGED,
        before,
        after,
        path=path,
        detail="" if reason else "changed",
        between=given.between,
    )
    if reason:
        return found
    return msgspec.structs.replace(found, said=f"{subject} changed{given.between}")


def _told(given: PromptPair, detail: str, place: JsonPlace | None, index: int, said: str) -> Difference:
    return Difference(
        Reason.TOOLS_CHANGED, detail, f"tools[{index}]{place.path if place else ''}", said=said + given.between
    )


def _renamed(one: Tool, other: Tool) -> JsonPlace | None:
    """The place of the name, if that is all that differs."""
    before, after = _loaded(one), _loaded(other)
    place = first_place(before, after)
    if place is None or place.path not in {".function.name", ".name"}:
        return None
    name = after["function"] if place.path == ".function.name" else after
    name["name"] = place.before
    return place if first_place(before, after) is None else None


def _loaded(tool: Tool) -> Any:
    try:
        return orjson.loads(tool.raw)
    except orjson.JSONDecodeError:
        return tool.raw


def _name(tool: Tool) -> str:
    return shown(tool.name) or "without a name"


def _count(tools: Sequence[Tool], name: str) -> int:
    return sum(tool.name == name for tool in tools)


def _canonicals(tools: Sequence[Tool]) -> frozenset[str]:
    return frozenset(tool.canonical for tool in tools)
