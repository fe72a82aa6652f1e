"""Sorts the keys of JSON objects. A value that is already in order is returned as the same object."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any

_DEEPEST = 100
"""Deeper levels are not sorted."""


@dataclass(slots=True)
class _Kind:
    """A kind of object.

    Attributes:
        first: Position of the names that come first; all others follow in alphabetical order.
        inside: Kind of a member's value, or of the items of its list, by name.
        other: Kind of the members with all other names; None: plain objects.
    """

    first: Mapping[str, int] = field(default_factory=dict)
    inside: Mapping[str, "_Kind"] = field(default_factory=dict)
    other: "_Kind | None" = None


def _first(names: str) -> Mapping[str, int]:
    return {name: place for place, name in enumerate(names.split())}


_PLAIN = _Kind()
_SCHEMA = _Kind(
    _first(
        "$schema $id $ref type title description format enum const default properties patternProperties required"
        " additionalProperties items"
    )
)
_SCHEMAS_BY_NAME = _Kind(other=_SCHEMA)
_SCHEMA.inside = {
    **dict.fromkeys(
        "items prefixItems additionalItems unevaluatedItems contains additionalProperties unevaluatedProperties"
        " propertyNames anyOf oneOf allOf not if then else".split(),
        _SCHEMA,
    ),
    **dict.fromkeys(
        "properties patternProperties dependentSchemas $defs definitions".split(),
        _SCHEMAS_BY_NAME,
    ),
}
_FUNCTION = _Kind(
    _first("name description parameters input_schema strict"), {"parameters": _SCHEMA, "input_schema": _SCHEMA}
)
_TOOL = _Kind(_first(f"type {' '.join(_FUNCTION.first)} function"), {**_FUNCTION.inside, "function": _FUNCTION})


def in_order(value: Any) -> Any:
    """The value with the keys of all objects in it in alphabetical order."""
    return _ordered(value, _PLAIN, _DEEPEST)


def tool_in_order(tool: Any) -> Any:
    """A tool with its keys, and those of its function and of all schemas, in the order in which they are usually
    written: type, name and description first. Names of properties are in alphabetical order."""
    return _ordered(tool, _TOOL, _DEEPEST)


def _ordered(value: Any, kind: _Kind, deepest: int) -> Any:
    if deepest and isinstance(value, dict):
        return _object(value, kind, deepest - 1)
    if deepest and isinstance(value, list):
        items = [_ordered(item, kind, deepest - 1) if isinstance(item, (dict, list)) else item for item in value]
        return value if all(map(is_, items, value)) else items
    return value


def _object(value: dict[str, Any], kind: _Kind, deepest: int) -> dict[str, Any]:
    names = list(value)
    first, behind = kind.first, len(kind.first)
    order = sorted(names, key=lambda name: (first.get(name, behind), name)) if first else sorted(names)
    same = names == order
    after = {}
    for name in order:
        inner = after[name] = value[name]
        if isinstance(inner, (dict, list)):
            after[name] = _ordered(inner, kind.inside.get(name) or kind.other or _PLAIN, deepest)
            same = same and after[name] is inner
    return value if same else after
