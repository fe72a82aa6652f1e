"""Choose the replica."""

from gateway.routing.policies import Affinity, Chooser
from gateway.routing.rates import LearnedRates

__all__ = ["Affinity", "Chooser", "LearnedRates"]
