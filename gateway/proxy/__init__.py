"""The fleet of replicas, and forwarding to them."""

from gateway.proxy.forward import Forwarder
from gateway.proxy.headers import asked_rank
from gateway.proxy.response import Terms
from gateway.proxy.retry_budget import RetryBudget

__all__ = [
    "Forwarder",
    "RetryBudget",
    "Terms",
    "asked_rank",
]
