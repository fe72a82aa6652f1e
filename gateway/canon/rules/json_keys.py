"""``json-keys``: sorts the keys in the definitions of tools and in the arguments of earlier tool calls.

A value that is already in order is returned as the same object.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from operator import is_
from typing import Any, ClassVar

import orjson

from gateway.canon.rewrite import rewritten, written_again
from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext
from gateway.canon.rules.tool_order import name_of
from gateway.canon.texts import messages
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint
from gateway.core.text_memo import text_memo

_DEEPEST = 100
"""Deeper levels are not sorted."""


class _Places(dict[str, tuple[int, str]]):
    """What names are sorted by: their position, and by themselves behind all that have one."""

    def __missing__(self, name: str) -> tuple[int, str]:
        return len(self), name


@dataclass(slots=True)
class _Kind:
    """A kind of object.

    Attributes:
        first: The names that come first; all others follow in alphabetical order.
        inside: Kind of a member's value, or of the items of its list, by name.
        other: Kind of the members with all other names; None: plain objects.
    """

    first: _Places = field(default_factory=_Places)
    inside: Mapping[str, "_Kind"] = field(default_factory=dict)
    other: "_Kind | None" = None


def _first(names: str) -> _Places:
    return _Places({name: (place, "") for place, name in enumerate(names.split())})


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
    changed: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, (dict, list)):
            after = _ordered(inner, kind.inside.get(name) or kind.other or _PLAIN, deepest)
            if after is not inner:
                changed[name] = after
    order = sorted(value, key=kind.first.__getitem__) if kind.first else sorted(value)
    if not changed and order == list(value):
        return value
    return {name: changed.get(name, value[name]) for name in order}


_MAX_CACHED = 5000
_LONGEST_KNOWN = 600
"""Longer arguments are not cached, because they may be as long as a request."""


class JsonKeys:
    """Sorts the keys of tools into the order in which they are usually written, and the keys of tool call arguments
    alphabetically. The order of lists and the notation of numbers and texts do not change.

    Codes of its edits: ``tool_sorted``, one per tool, and ``arguments_sorted``, one per tool call.
    """

    name: ClassVar[RuleName] = RuleName.JSON_KEYS

    def __init__(self) -> None:
        # Digests of tools that are in order, because an application sends the same tools with every request. Per
        # tenant: response times must not reveal what another tenant sent.
        self._in_order: set[bytes | None] = set()

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``."""
        if given.endpoint is not Endpoint.CHAT:
            return NOTHING
        edits = [*self._of_tools(fields.get("tools"), given.tenant), *self._of_calls(fields, given.tenant)]
        return Detected(edits) if edits else NOTHING

    def _of_tools(self, tools: Any, tenant: str) -> Iterator[Edit]:
        if not isinstance(tools, list) or not tools:
            return
        known = _digest(tools, tenant)
        if known in self._in_order:
            return
        ordered = True
        for number, tool in enumerate(tools):
            after = tool_in_order(tool)
            if after is not tool:
                summary = f"The keys of the tool {name_of(tool)} are put in order."
                ordered = False
                yield Edit(self.name, "tool_sorted", ("tools", number), tool, after, summary=summary)
        if ordered and known is not None:
            if len(self._in_order) >= _MAX_CACHED:
                self._in_order.clear()
            self._in_order.add(known)

    def _of_calls(self, fields: Fields, tenant: str) -> Iterator[Edit]:
        with_calls = [each for each in enumerate(messages(fields)) if "tool_calls" in each[1]]
        for number, message in with_calls:
            calls = message["tool_calls"]
            if message.get("role") != "assistant" or not isinstance(calls, list):
                continue
            for place, call in enumerate(calls):
                function = call.get("function") if isinstance(call, dict) else None
                before = function.get("arguments") if isinstance(function, dict) else None
                if isinstance(before, str) and (after := _sorted_arguments(before, tenant)) != before:
                    path = ("messages", number, "tool_calls", place, "function", "arguments")
                    summary = f"The keys of the arguments of a call of {name_of(call)} are put in order."
                    yield Edit(self.name, "arguments_sorted", path, before, after, summary=summary)


def _digest(tools: Sequence[Any], tenant: str) -> bytes | None:
    """Digest of the tools, including the order of their keys; None if orjson cannot encode them."""
    try:
        return blake2b(orjson.dumps([tenant, tools]), digest_size=16).digest()
    except orjson.JSONEncodeError:
        return None


def _sorted_arguments(text: str, tenant: str) -> str:
    """The JSON text of an object with sorted keys; unchanged if they are sorted, or if it is not an object.

    Cached per tenant: a conversation sends its calls again with every turn.
    """
    return _sorted(text, tenant) if len(text) > _LONGEST_KNOWN else _known(text, tenant)


def _sorted(text: str, _tenant: str) -> str:
    try:
        body = text.encode()
        before = orjson.loads(body)
        after = in_order(before)
        if after is before or not isinstance(before, dict):
            return text
        again = written_again(body, before, after)
        if again is None:
            json.loads(body, object_pairs_hook=_refuse_duplicates)
            again = rewritten(body, before, after)
    except (ValueError, RecursionError):
        return text
    return again.decode()


_known = text_memo(4096)(_sorted)


def _refuse_duplicates(pairs: Sequence[tuple[str, Any]]) -> None:
    """Raises:
    ValueError: a name occurs twice, so the object is ambiguous.
    """
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name occurs twice")
