"""The fleet of replicas, and forwarding to them."""

from gateway.proxy.forward import Forwarder
from gateway.proxy.headers import asked_rank
from gateway.proxy.response import ForwardOptions
from gateway.proxy.retry_budget import RetryBudget

__all__ = [
    "ForwardOptions",
    "Forwarder",
    "RetryBudget",
    "asked_rank",
]
