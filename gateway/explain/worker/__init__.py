"""Explanations, worked out in a process beside the gateway: ``ExplainClient`` starts it and talks to it.

The names are loaded when they are asked for: that process imports this package as well, and needs neither.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.explain.worker.front import ExplainClient

__all__ = [
    "ExplainClient",
]


def __getattr__(name: str) -> Any:
    if name == "ExplainClient":
        from gateway.explain.worker.front import ExplainClient

        return ExplainClient
    raise AttributeError(name)
