"""Counters and histograms in plain numbers, which become samples only when metrics are scraped.

Labels are tuples of values. Their text forms are made at scrape time, too, so an enumeration and its text are one
label value.

Histograms can carry exemplars with request ids. A scrape reads only one per bucket, so a bucket's exemplar is replaced
at most once per second.
"""

import re
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

Labels = tuple[object, ...]

RequestValue = tuple[float, str, float]
"""A value of a request, its id, and when it ended: monotonic seconds."""

_LABEL = "request_id"
_NAMEABLE = re.compile(rf"[A-Za-z0-9._:/+=@~-]{{1,{128 - len(_LABEL)}}}")
"""OpenMetrics allows 128 characters for an exemplar's labels including names, and an invalid one breaks the whole
scrape. Clients choose the ids, and not every parser accepts escaped quotes, so such ids are not used."""
_INTERVAL_SECONDS = 1.0


class MetricRegistry(CollectorRegistry):
    """A registry of metrics that are counted in batches.

    Attributes:
        count_waiting: Counts what is not yet counted; called before the metrics are read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count_waiting: Callable[[], None] = lambda: None

    def collect(self) -> Iterable[Metric]:
        """See ``CollectorRegistry``."""
        self.count_waiting()
        return super().collect()


class Counter(Collector):
    """A counter.

    Args:
        name: Its name, without ``_total``.
        documentation: What it counts.
        label_names: Names of its labels.
        registry: Registers it.

    Attributes:
        label_names: As given.
        values: Values by labels. May be written by the event loop's thread only; other threads call ``inc``, of
            counters that are not written otherwise.
    """

    def __init__(
        self, name: str, documentation: str, label_names: Sequence[str] = (), *, registry: CollectorRegistry
    ) -> None:
        self.label_names = label_names
        self.values: defaultdict[Labels, float] = defaultdict(int)
        self._name = name
        self._documentation = documentation
        self._lock = threading.Lock()
        if not label_names:
            self.values[()] = 0
        registry.register(self)

    def inc(self, *labels: object, by: float = 1) -> None:
        """Add to the value of some labels; 0 creates it. Thread-safe."""
        with self._lock:
            self.values[labels] += by

    def remove(self, label_name: str, value: str) -> None:
        """Remove all series with a label value."""
        position = self.label_names.index(label_name)
        for labels in [labels for labels in self.values if labels[position] == value]:
            del self.values[labels]

    def describe(self) -> Iterable[Metric]:
        """The metric without samples; the registry rejects a second one of its name."""
        return [Metric(self._name, self._documentation, "counter")]

    def collect(self) -> Iterable[Metric]:
        """See ``Collector``."""
        (metric,) = self.describe()
        for labels, value in list(self.values.items()):
            metric.add_sample(f"{self._name}_total", _texts(self.label_names, labels), value)
        return [metric]


class Buckets:
    """The counts of one series of a histogram.

    Args:
        bounds: Upper bounds of its buckets, without +Inf.

    Attributes:
        counts: Number of values in each bucket.
        sum: Sum of the values.
        exemplars: Exemplar of each bucket; None for none.
    """

    __slots__ = ("_bounds", "_due", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.exemplars: list[Exemplar | None] = [None] * (len(bounds) + 1)
        self._bounds = bounds
        self._due = [0.0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: Iterable[float]) -> None:
        """Count several values."""
        bounds, counts = self._bounds, self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self.sum += value

    def observe_requests(self, observed: Iterable[RequestValue]) -> None:
        """Count values of requests, in the order in which these ended. Request ids that are not valid in an exemplar
        are left out."""
        bounds, counts, due = self._bounds, self.counts, self._due
        clocks_apart = time.time() - time.monotonic()
        for value, request_id, ended_at in observed:
            bucket = bisect_left(bounds, value)
            counts[bucket] += 1
            self.sum += value
            if ended_at >= due[bucket] and _NAMEABLE.fullmatch(request_id):
                due[bucket] = ended_at + _INTERVAL_SECONDS
                self.exemplars[bucket] = Exemplar({_LABEL: request_id}, value, ended_at + clocks_apart)


class Histogram(Collector):
    """A histogram.

    Args:
        name: Its name.
        documentation: What it measures.
        label_names: Names of its labels.
        bounds: Upper bounds of its buckets, in ascending order, without +Inf.
        registry: Registers it.

    Attributes:
        label_names: As given.
        series: Counts by labels.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        label_names: Sequence[str],
        *,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self.label_names = label_names
        self.series: defaultdict[Labels, Buckets] = defaultdict(lambda: Buckets(bounds))
        self._name = name
        self._documentation = documentation
        self._bounds = [floatToGoString(bound) for bound in (*bounds, "+Inf")]  # type: ignore[no-untyped-call]
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """As of ``Counter``."""
        return [Metric(self._name, self._documentation, "histogram")]

    def collect(self) -> Iterable[Metric]:
        """See ``Collector``."""
        (metric,) = self.describe()
        for labels, buckets in list(self.series.items()):
            texts = _texts(self.label_names, labels)
            count = 0
            for bound, here, exemplar in zip(self._bounds, buckets.counts, buckets.exemplars, strict=True):
                count += here
                metric.add_sample(f"{self._name}_bucket", texts | {"le": bound}, count, exemplar=exemplar)
            metric.add_sample(f"{self._name}_count", texts, count)
            metric.add_sample(f"{self._name}_sum", texts, buckets.sum)
        return [metric]


def _texts(names: Sequence[str], labels: Labels) -> dict[str, str]:
    return {name: str(label) for name, label in zip(names, labels, strict=True)}
