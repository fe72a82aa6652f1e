"""Discrete-event simulation of a fleet on a workload trace: no sockets, no clock, no text.

In: the requests of a trace (``Workload``), the shape of a fleet (``FleetShape``) and a policy. Out: hit shares and
times to first token (``SimulationResult``). ``simulate`` runs one policy; ``ladder`` also the limits above the
policies. Start reading at ``event_loop_model.py``.
"""

from gateway.evaluation.simulation.event_loop_model import ladder, simulate
from gateway.evaluation.simulation.simulated_policies import LIMITS, POLICIES
from gateway.evaluation.simulation.simulation_workload import QUANTILES, FleetShape, SimulationResult, Workload

__all__ = ["LIMITS", "POLICIES", "QUANTILES", "FleetShape", "SimulationResult", "Workload", "ladder", "simulate"]
