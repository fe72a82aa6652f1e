"""The ladder of a fleet: what no cache can hit, what its caches cannot hold, what routing loses, policy by policy."""

from collections.abc import Callable, Sequence

from gateway.config.routing_settings import PlacementSettings, QueueSettings
from gateway.evaluation.simulation.event_loop_model import simulate
from gateway.evaluation.simulation.simulated_policies import LIMITS, POLICIES
from gateway.evaluation.simulation.simulation_result import SimulationResult
from gateway.evaluation.simulation.simulation_workload import FleetShape, Workload


def ladder(
    workload: Workload,
    fleet: FleetShape,
    policies: Sequence[str] = POLICIES,
    *,
    settings: PlacementSettings | None = None,
    queue: QueueSettings | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[SimulationResult]:
    """Simulate the limits and the policies on one fleet, in the order of the ladder.

    Args:
        workload: The requests.
        fleet: The replicas.
        policies: Of ``POLICIES``.
        settings: As for ``simulate``.
        queue: As for ``simulate``.
        on_progress: Called now and then with the number of requests simulated since the last call.
    """
    return [
        simulate(workload, fleet, name, settings=settings, queue=queue, on_progress=on_progress)
        for name in (*LIMITS, *policies)
    ]
