"""The explain worker: a process beside the gateway that explains requests, and the client that starts it.

In: records of answered requests, cache events, queries. Out: counters of missed tokens, answers, notices for the log.
Start with ``explain_client`` (``ExplainClient``, in the gateway) and ``process`` (the worker's loop);
``explain_messages`` defines the protocol between them.

``ExplainClient`` is imported lazily: the worker imports this package as well and does not need it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.explain.worker.explain_client import ExplainClient

__all__ = [
    "ExplainClient",
]


def __getattr__(name: str) -> Any:
    if name == "ExplainClient":
        from gateway.explain.worker.explain_client import ExplainClient

        return ExplainClient
    raise AttributeError(name)
