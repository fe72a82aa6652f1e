"""Explanations, worked out in a process beside the gateway: ``ExplainFront`` starts it and talks to it.

The names are loaded when they are asked for: that process imports this package as well, and needs neither.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.explain.front import ExplainFront
    from gateway.explain.settings import ExplainSettings

__all__ = ["ExplainFront", "ExplainSettings"]


def __getattr__(name: str) -> Any:
    if name == "ExplainFront":
        from gateway.explain.front import ExplainFront

        return ExplainFront
    if name == "ExplainSettings":
        from gateway.explain.settings import ExplainSettings

        return ExplainSettings
    raise AttributeError(name)
