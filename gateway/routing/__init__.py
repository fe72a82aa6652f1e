"""Placement: chooses the target of a request and orders requests that wait for capacity.

In: loads, holdings and learned rates of the targets. Out: a ``Decision``, or the turn of a waiting request. Start with
``policies`` (cost of a target), ``rates`` (learned speed) and ``request_queue`` (waiting, fair between tenants).
"""

from gateway.routing.policies import Affinity, Chooser
from gateway.routing.prefills import PrefillsInFlight
from gateway.routing.rates import LearnedRates

__all__ = ["Affinity", "Chooser", "LearnedRates", "PrefillsInFlight"]
