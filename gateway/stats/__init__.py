"""Statistics of explained requests: sums over time, and details of the last requests.

In: an ``Explanation`` for each request (``Stats.add``). Out: JSON documents of the admin API (``Stats.answer``). Memory
is bounded for any input, and holds no text except masked windows. Start with ``journal``, then ``counters`` (sums by
time and label), ``findings`` (largest causes of misses) and ``entries`` (the last requests).
"""

from gateway.stats.journal import Stats
from gateway.stats.label_limiter import StatsLimits
from gateway.stats.prices import ComputePrice

__all__ = ["ComputePrice", "Stats", "StatsLimits"]
