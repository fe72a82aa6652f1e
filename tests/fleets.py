"""Replicas for tests that look at a fleet from outside: no sockets, and time is a number."""

from gateway.config.routing_settings import RelaySettings
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.replica_state import Rates
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.routing import LearnedRates

NOW = 1000.0
MODEL = ModelId("m")
RATES = Rates(base_seconds=0.01, prefill_seconds_per_token=0.001, decode_seconds_per_token=0.02, request_seconds=2.0)
LIMITS = RelaySettings(suspect_seconds=5, eject_after=3, eject_max_seconds=60)


def replica(name, *, model="m", region="", up=True):
    made = Replica(
        ReplicaId(name), f"http://{name}:8000", ModelId(model), LearnedRates(RATES), region=region, breaker=LIMITS
    )
    made.up = up
    return made


def fleet(names, ramp_seconds=0, **options):
    """A replica of model m for each letter, all up."""
    return Fleet([replica(name, **options) for name in names], ramp_seconds)


def routable(of, now=NOW, exclude="", regions=()):
    """Their names, in order."""
    found = of.routable(MODEL, now, {ReplicaId(name) for name in exclude}, regions)
    return "".join(sorted(each.id for each in found))


def fail(of, names, at=NOW):
    """Each of these failed a request that was sent and failed at the same moment."""
    for name in names:
        assert of.find(name).breaker.failed(at, at)


class Flight:
    """A request in flight."""

    def __init__(self, sent_at):
        self.sent_at = self.last_byte_at = sent_at
        self.content_at = None
        self.expected_seconds = 0.5
        self.problem = ""

    def answer(self, at):
        """A piece of its answer is received."""
        self.last_byte_at = at
        self.content_at = self.content_at or at

    def call_back(self, problem):
        self.problem = problem


def send(at, sent_at):
    """A request is on its way to a replica, and nothing has come back."""
    flight = Flight(sent_at)
    at.flights.add(flight)
    ticket = at.dispatch(0, 100, NOW)
    return flight, ticket
