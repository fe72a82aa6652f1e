"""The fleet of replicas, and forwarding to them."""

from gateway.relay.engines import EngineCalls
from gateway.relay.fleet import Fleet, Replica, Ticket, suspect
from gateway.relay.forward import Forwarder
from gateway.relay.health import HealthEvents, HealthMonitor
from gateway.relay.http import HttpClient

__all__ = [
    "EngineCalls",
    "Fleet",
    "Forwarder",
    "HealthEvents",
    "HealthMonitor",
    "HttpClient",
    "Replica",
    "Ticket",
    "suspect",
]
