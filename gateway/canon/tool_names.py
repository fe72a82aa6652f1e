"""What tools are called. Tools are whatever a client sends: any JSON."""

from collections.abc import Iterable, Mapping
from typing import Any

_LONGEST = 64
_MOST = 12


def named(tool: Any) -> str | None:
    """The name of a tool: its function's, or its own; None if it has none."""
    if not isinstance(tool, Mapping):
        return None
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        name = tool.get("name")
    return name if isinstance(name, str) else None


def names_said(tools: Iterable[Any]) -> str:
    """The names of tools that have one, as a list to read: not all of very many, and none longer than a name is."""
    names = [name_said(tool) for tool in tools if named(tool) is not None]
    more = len(names) - _MOST
    return ", ".join(names[:_MOST]) + (f" and {more} more" if more > 0 else "")


def name_said(tool: Any) -> str:
    """The name of a tool, to read."""
    name = named(tool)
    if name is None:
        return "(no name)"
    return name if len(name) <= _LONGEST else name[:_LONGEST] + "…"
