"""Forwarding of requests to replicas.

A placed request comes in; the answer goes to a ``Sink``, an ``Outcome`` to the caller, which decides how the answer
ends. Start with ``forward.Forwarder``; ``response`` and ``sse`` check the answer, ``resume`` continues broken streams,
``retry_budget`` limits retries.
"""

from gateway.proxy.forward import Forwarder
from gateway.proxy.forwarded_attempt import AnswerLimits
from gateway.proxy.headers import asked_rank
from gateway.proxy.retry_budget import RetryBudget

__all__ = [
    "AnswerLimits",
    "Forwarder",
    "RetryBudget",
    "asked_rank",
]
