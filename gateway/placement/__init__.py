"""Choose the replica."""

from gateway.placement.choose import Affinity, Chooser
from gateway.placement.rates import LearnedRates

__all__ = ["Affinity", "Chooser", "LearnedRates"]
