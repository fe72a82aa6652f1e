"""Finds the first place where two JSON values differ."""

import re
from dataclasses import dataclass
from typing import Any

from gateway.explain.diff.given import shown

_DEPTH = 40
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w\-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """The first place where two values differ.

    Attributes:
        path: Path from the root, as ``.function.parameters.required[1]``; empty for the root.
        how: ``changed``, ``added``, ``removed``, or ``key_order``.
        before: The earlier value; None if it was added.
        after: The later value; None if it was removed.
    """

    path: str
    how: str
    before: Any = None
    after: Any = None


def first_place(before: Any, after: Any, path: str = "", depth: int = 0) -> JsonPlace | None:
    """The first differing place, in document order; None if the values are equal."""
    if depth < _DEPTH and isinstance(before, dict) and isinstance(after, dict):
        return _in_object(before, after, path, depth)
    if depth < _DEPTH and isinstance(before, list) and isinstance(after, list):
        return _in_list(before, after, path, depth)
    if type(before) is type(after) and (depth >= _DEPTH or before == after):
        return None
    return JsonPlace(path, "changed", before, after)


def _in_object(before: dict[str, Any], after: dict[str, Any], path: str, depth: int) -> JsonPlace | None:
    for one, other in zip(before, after, strict=False):
        if one != other:
            if one not in after:
                return JsonPlace(path + step(one), "removed", before[one])
            if other not in before:
                return JsonPlace(path + step(other), "added", None, after[other])
            return JsonPlace(path, "key_order", before, after)
        if place := first_place(before[one], after[one], path + step(one), depth + 1):
            return place
    for key in list(after)[len(before) :]:
        return JsonPlace(path + step(key), "added", None, after[key])
    for key in list(before)[len(after) :]:
        return JsonPlace(path + step(key), "removed", before[key])
    return None


def _in_list(before: list[Any], after: list[Any], path: str, depth: int) -> JsonPlace | None:
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        if place := first_place(one, other, f"{path}[{index}]", depth + 1):
            return place
    shorter = min(len(before), len(after))
    if len(before) == len(after):
        return None
    if len(after) > shorter:
        return JsonPlace(f"{path}[{shorter}]", "added", None, after[shorter])
    return JsonPlace(f"{path}[{shorter}]", "removed", before[shorter])


def step(key: str) -> str:
    """A key as a step of a path."""
    return f".{key}" if _PLAIN_KEY.fullmatch(key) and len(key) <= 60 else f'["{shown(key)}"]'
