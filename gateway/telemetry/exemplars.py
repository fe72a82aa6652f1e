"""Histograms that name a request for what they count, so that a chart leads to an example.

A scrape shows one exemplar for each bucket, and a scrape comes every few seconds, while setting an exemplar costs more
than counting does. So a bucket's exemplar is replaced once in an interval, not with every request: the buckets of rare,
slow requests keep theirs, however many fast ones there are.
"""

import re
import time
from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import Histogram

_LABEL = "request_id"
_NAMEABLE = re.compile(rf"[A-Za-z0-9._:/+=@~-]{{1,{128 - len(_LABEL)}}}")
"""OpenMetrics allows 128 characters for an exemplar's labels, names included, and one that breaks a rule spoils the
whole scrape. Clients choose the ids, and not every parser takes escaped quotes, so what would need them is left out."""
_INTERVAL_SECONDS = 1.0


class ExemplarHistogram:
    """One labelled child of a histogram.

    Args:
        child: It.
        bounds: The upper bounds of its buckets, without the last one, which has none.
    """

    def __init__(self, child: Histogram, bounds: Sequence[float]) -> None:
        self._child = child
        self._bounds = bounds
        self._due = [0.0] * (len(bounds) + 1)

    def observe(self, value: float, request_id: str) -> None:
        """Count a value. A request whose id is too long or has odd characters is counted without being named."""
        bucket = bisect_left(self._bounds, value)
        now = time.monotonic()
        if now < self._due[bucket] or not _NAMEABLE.fullmatch(request_id):
            self._child.observe(value)
            return
        self._due[bucket] = now + _INTERVAL_SECONDS
        self._child.observe(value, {_LABEL: request_id})
