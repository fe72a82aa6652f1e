"""``tool-order``: sorts the tools, because clients' frameworks list them in varying order."""

from typing import Any, ClassVar

from gateway.canon.edits import Edit
from gateway.canon.rule import NOTHING, Detected, Fields, RuleContext
from gateway.canon.tool_names import named, names_said
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint


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
        said = f"The tools are put in the order of their names: {names_said(after)}."
        return Detected([Edit(self.name, "sorted", ("tools",), tools, after, said=said)])


def _place(tool: Any) -> tuple[bool, str, str]:
    name = named(tool)
    if name is None:
        return True, "", ""
    kind = tool.get("type")
    return False, kind if isinstance(kind, str) else "", name
