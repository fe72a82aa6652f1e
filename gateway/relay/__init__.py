"""The fleet of replicas, and forwarding to them."""

from gateway.relay.answer import Terms
from gateway.relay.breaker import BreakerLimits
from gateway.relay.budget import RetryBudget
from gateway.relay.drains import DrainOrder, Drains
from gateway.relay.engines import EngineCalls
from gateway.relay.failures import failure_stage, take_note
from gateway.relay.fleet import Fleet
from gateway.relay.forward import Forwarder
from gateway.relay.headers import asked_rank
from gateway.relay.health import HealthEvents, HealthMonitor
from gateway.relay.http import HttpClient
from gateway.relay.peers import SharedLoads
from gateway.relay.rank import Ticket
from gateway.relay.replica import Replica
from gateway.relay.shared_drains import SharedDrains

__all__ = [
    "BreakerLimits",
    "DrainOrder",
    "Drains",
    "EngineCalls",
    "Fleet",
    "Forwarder",
    "HealthEvents",
    "HealthMonitor",
    "HttpClient",
    "Replica",
    "RetryBudget",
    "SharedDrains",
    "SharedLoads",
    "Terms",
    "Ticket",
    "asked_rank",
    "failure_stage",
    "take_note",
]
