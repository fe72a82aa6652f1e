"""Explanations, worked out in a process beside the gateway: ``ExplainFront`` starts it and talks to it.

The names are loaded when they are asked for: that process imports this package as well, and needs neither.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.explain.worker.front import ExplainFront

__all__ = [
    "ExplainFront",
]


def __getattr__(name: str) -> Any:
    if name == "ExplainFront":
        from gateway.explain.worker.front import ExplainFront

        return ExplainFront
    raise AttributeError(name)
