"""The fleet of replicas, and forwarding to them."""

from gateway.relay.engines import EngineCalls
from gateway.relay.fleet import Fleet, Replica, suspect
from gateway.relay.forward import Forwarder
from gateway.relay.headers import asked_rank
from gateway.relay.health import HealthEvents, HealthMonitor
from gateway.relay.http import HttpClient
from gateway.relay.rank import Ticket

__all__ = [
    "EngineCalls",
    "Fleet",
    "Forwarder",
    "HealthEvents",
    "HealthMonitor",
    "HttpClient",
    "Replica",
    "Ticket",
    "asked_rank",
    "suspect",
]
