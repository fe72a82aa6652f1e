"""``tool-order``: sorts the tools, because clients' frameworks list them in varying order.

Tools are unchecked client input: any JSON.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint

_MAX_NAME_CHARS = 64
_MAX_NAMES = 12


def named(tool: Any) -> str | None:
    """Name of a tool: that of its function, or its own; None if it has none."""
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        name = tool.get("name")
    return name if isinstance(name, str) else None


def names_of(tools: Iterable[Any]) -> str:
    """The names of tools for messages, at most 12, each cut to 64 characters; unnamed tools are left out."""
    names = [name_of(tool) for tool in tools if named(tool) is not None]
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def name_of(tool: Any) -> str:
    """The name of a tool for messages."""
    name = named(tool)
    if name is None:
        return "(no name)"
    return name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "…"


class ToolOrder:
    """Sorts ``tools`` by type and name; those without a name come last, in their original order.

    Code of its edit, one for all tools: ``sorted``.
    """

    name: ClassVar[RuleName] = RuleName.TOOL_ORDER

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``."""
        tools = fields.get("tools")
        if given.endpoint is not Endpoint.CHAT or not isinstance(tools, list):
            return NOTHING
        after = sorted(tools, key=_place)
        if all(one is other for one, other in zip(tools, after, strict=True)):
            return NOTHING
        summary = f"The tools are put in the order of their names: {names_of(after)}."
        return Detected([Edit(self.name, "sorted", ("tools",), tools, after, summary=summary)])


def _place(tool: Any) -> tuple[bool, str, str]:
    name = named(tool)
    if name is None:
        return True, "", ""
    kind = tool.get("type")
    return False, kind if isinstance(kind, str) else "", name
