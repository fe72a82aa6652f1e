"""The policies of a simulation: the gateway's own, with its own code, and others to compare with.

All of them know exactly what each replica holds, as a gateway with complete KV events does, and count the blocks of
requests that wait at a replica as held there.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, get_args

from gateway.config.routing_settings import PlacementSettings
from gateway.core.ids import ReplicaId, Target
from gateway.core.ports import Holding
from gateway.core.replica_state import Load, Rates
from gateway.evaluation.simulation.replica_model import SimulatedCall
from gateway.evaluation.simulation.simulation_workload import FleetShape, WorkloadRequest
from gateway.routing import Affinity, Chooser, LearnedRates, PrefillsInFlight

IDEAL = "ideal"
"""One cache without a limit, shared by all replicas."""

CAPACITY = "capacity"
"""One shared cache, as large as those of all replicas together."""

PERFECT = "perfect"
"""Always the replica that holds most; loads are ignored."""

SHARED = (IDEAL, CAPACITY)
"""Limits in which all replicas share one cache."""

LIMITS = (IDEAL, CAPACITY, PERFECT)
"""What policies are compared with, in the order of the ladder. Only the first is a strict limit: with the others the
least recently used block is evicted, and a policy that happens to keep what is needed later can be better."""

LOAD_GATE = "load_gate"
"""Affinity with a load gate, as other routers have it."""

GATEWAY_POLICIES: tuple[str, ...] = get_args(PlacementSettings.model_fields["policy"].annotation)
"""Those of the gateway."""

POLICIES = (*GATEWAY_POLICIES, LOAD_GATE)
"""Every policy that can be simulated."""

_START_TOKENS = 100
"""Generated tokens in the start value of the time of a whole request, as the gateway assumes."""


Ahead = Mapping[Target, int]
"""Prompt tokens that wait in the gateway's queue in front of a request, by target."""


class ReplicaLoad:
    """What a gateway knows of the work at one replica.

    Attributes:
        requests: Requests in flight.
        prefills: Prompts in flight that are not yet computed.
    """

    __slots__ = ("prefills", "requests")

    def __init__(self) -> None:
        self.requests = 0
        self.prefills = PrefillsInFlight()


class SimulatedPolicy(Protocol):
    """Selects a replica for each request."""

    def choose(
        self, request: WorkloadRequest, held: Sequence[int], loads: Sequence[ReplicaLoad], ahead: Ahead, now: float
    ) -> int:
        """The number of a replica.

        Args:
            request: The request.
            held: Prompt tokens that each replica holds.
            loads: Load of each replica.
            ahead: Prompt tokens that wait in the gateway's queue in front of the request, by target.
            now: The moment, in seconds of the trace.
        """
        ...

    def answered(self, replica: int, call: SimulatedCall, now: float) -> None:
        """A replica has completed an answer."""
        ...


class GatewayPolicy:
    """A policy of the gateway: its chooser, with rates learned from the answers as the gateway learns them.

    Args:
        name: Name of the policy.
        fleet: The fleet; its rates are the start values.
        settings: Weights and margins.

    Attributes:
        targets: The replicas as targets.
    """

    def __init__(self, name: str, fleet: FleetShape, settings: PlacementSettings) -> None:
        self._chooser = Chooser(name, settings.miss_weight, settings.tie_margin, fleet.slots)
        self.targets = [Target(ReplicaId(f"replica-{number}")) for number in range(fleet.replicas)]
        self._numbers = {target: number for number, target in enumerate(self.targets)}
        self._learns = name == "expected_ttft"
        start = Rates(
            base_seconds=0.0,
            prefill_seconds_per_token=1 / fleet.prefill_rate,
            decode_seconds_per_token=fleet.decode_seconds,
            request_seconds=_START_TOKENS * fleet.decode_seconds,
        )
        pool = LearnedRates(start)
        self._rates = [LearnedRates(start, pool) for _ in range(fleet.replicas)]

    def queue_seconds(self, loads: Sequence[ReplicaLoad], number: int) -> float:
        """Work in flight at one replica, prompts in full: by it the queue holds requests back."""
        load = loads[number]
        full = Load(self.targets[number], load.prefills.tokens, load.requests, self._rates[number].rates)
        return self._chooser.queue_seconds(full)

    def choose(
        self, request: WorkloadRequest, held: Sequence[int], loads: Sequence[ReplicaLoad], ahead: Ahead, now: float
    ) -> int:
        """See ``SimulatedPolicy``."""
        decision = self._chooser.choose(
            [self._load(number, load, ahead, now) for number, load in enumerate(loads)],
            [Holding(tokens, tokens) for tokens in held],
            request.prompt_tokens,
            Affinity(request.beginning, request.session),
        )
        return self._numbers[decision.target]

    def answered(self, replica: int, call: SimulatedCall, now: float) -> None:
        """See ``SimulatedPolicy``."""
        if not self._learns:
            return
        rates, request = self._rates[replica], call.request
        prefill = call.prefill_ahead + call.prefill_tokens
        rates.observe_first_token(prefill, call.first_at - call.sent_at)
        rates.observe_decode(request.output_tokens - 1, now - call.first_at)
        rates.observe_request(prefill, request.output_tokens, now - call.sent_at, streamed=True)

    def prefill_ahead(self, number: int, load: ReplicaLoad, now: float) -> int:
        """Uncached tokens left to compute at one replica, by its learned rate."""
        return load.prefills.left(now, self._rates[number].rates.prefill_seconds_per_token)

    def _load(self, number: int, load: ReplicaLoad, ahead: Ahead, now: float) -> Load:
        target = self.targets[number]
        tokens = self.prefill_ahead(number, load, now) + ahead.get(target, 0)
        return Load(target, tokens, load.requests, self._rates[number].rates)


class GatedAffinity:
    """The replica that holds most, unless the loads differ too much: affinity with a load gate.

    The defaults are those of SGLang's router: requests go to the least loaded replica while the number in flight
    differs by more than 64 and by more than half; else to the replica that holds most, if that is more than 30 % of the
    prompt; else to the one with the smallest record of earlier prompts, which is here the one that was sent the fewest
    new tokens.

    Args:
        replicas: How many.
    """

    _DIFFERENCE = 64
    _RATIO = 1.5
    _SHARE = 0.3

    def __init__(self, replicas: int) -> None:
        self._new_tokens = [0] * replicas

    def choose(
        self, request: WorkloadRequest, held: Sequence[int], loads: Sequence[ReplicaLoad], _ahead: Ahead, _now: float
    ) -> int:
        """See ``SimulatedPolicy``."""
        number = self._choose(request, held, loads)
        self._new_tokens[number] += request.prompt_tokens - held[number]
        return number

    def answered(self, replica: int, call: SimulatedCall, now: float) -> None:
        """See ``SimulatedPolicy``."""

    def _choose(self, request: WorkloadRequest, held: Sequence[int], loads: Sequence[ReplicaLoad]) -> int:
        numbers = range(len(loads))
        counts = [load.requests for load in loads]
        least, most = min(counts), max(counts)
        if most - least > self._DIFFERENCE and most > self._RATIO * least:
            return min(numbers, key=counts.__getitem__)
        best = max(numbers, key=held.__getitem__)
        if held[best] > self._SHARE * request.prompt_tokens:
            return best
        return min(numbers, key=self._new_tokens.__getitem__)


class PerfectRouting:
    """The replica that holds most, regardless of its load: about the least prefill that separate caches allow.

    Replicas whose prefill is within 5 % of the least count as equal, and the one goes first that was sent the fewest
    new tokens: equal numbers of evictions keep equally old blocks everywhere, as one large cache would. Without that
    margin a first block that all prompts share would draw all of them to the one replica that has it.

    Args:
        replicas: How many.
    """

    _MARGIN = 0.05

    def __init__(self, replicas: int) -> None:
        self._new_tokens = [0] * replicas

    def choose(
        self, request: WorkloadRequest, held: Sequence[int], _loads: Sequence[ReplicaLoad], _ahead: Ahead, _now: float
    ) -> int:
        """See ``SimulatedPolicy``."""
        limit = (request.prompt_tokens - max(held)) * (1 + self._MARGIN)
        tied = [number for number, tokens in enumerate(held) if request.prompt_tokens - tokens <= limit]
        chosen = min(tied, key=self._new_tokens.__getitem__)
        self._new_tokens[chosen] += request.prompt_tokens - held[chosen]
        return chosen

    def answered(self, replica: int, call: SimulatedCall, now: float) -> None:
        """See ``SimulatedPolicy``."""


class OneReplica:
    """The policy of a fleet that is simulated as one replica with a shared cache."""

    def choose(
        self, _request: WorkloadRequest, _held: Sequence[int], _loads: Sequence[ReplicaLoad], _ahead: Ahead, _now: float
    ) -> int:
        """See ``SimulatedPolicy``."""
        return 0

    def answered(self, replica: int, call: SimulatedCall, now: float) -> None:
        """See ``SimulatedPolicy``."""


def make_policy(name: str, fleet: FleetShape, settings: PlacementSettings) -> SimulatedPolicy:
    """The policy of a name.

    Args:
        name: Of ``POLICIES`` or ``LIMITS``.
        fleet: The replicas.
        settings: Weights of the gateway's policies.

    Raises:
        ValueError: No such policy.
    """
    if name in SHARED:
        return OneReplica()
    if name == PERFECT:
        return PerfectRouting(fleet.replicas)
    if name == LOAD_GATE:
        return GatedAffinity(fleet.replicas)
    if name in GATEWAY_POLICIES:
        return GatewayPolicy(name, fleet, settings)
    raise ValueError(f"no policy {name!r}")
