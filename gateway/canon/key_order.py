"""Objects with their keys in one order. Whatever is in order already is given back as the very same object."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any

_DEEPEST = 100
"""What lies deeper stays as it is."""


@dataclass(slots=True)
class _Kind:
    """A kind of object.

    Attributes:
        first: Names that come first, in this order; all others follow in that of the alphabet.
        inside: What kind a member's value is, or the items of its list, by name.
        other: What kind they are under all other names; None for objects without anything to know about them.
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
    """A value with the keys of all objects in it in the order of the alphabet."""
    return _ordered(value, _PLAIN, _DEEPEST)


def tool_in_order(tool: Any) -> Any:
    """A tool with its keys, and those of its function and of all schemas, in the order in which they are mostly
    written: what it is and how it is called in front. Names of properties are in the order of the alphabet."""
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
