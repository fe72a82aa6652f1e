"""What was explained: added up over time, and kept in detail for the last requests.

``Stats.add`` takes every explanation; ``Stats.answer`` gives what the admin port shows. Memory is bounded whatever
comes in; it holds no text but masked windows.
"""

from gateway.stats.journal import FamiliesShown, Stats
from gateway.stats.stats_limits import ComputePrice, StatsLimits

__all__ = ["ComputePrice", "FamiliesShown", "Stats", "StatsLimits"]
