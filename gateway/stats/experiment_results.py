"""Results of the experiment: compares the requests of both groups, with confidence intervals."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from gateway.core.experiment_group import ExperimentGroup, ExperimentSample
from gateway.stats.cluster_bootstrap import LEVEL, Draws, Floats, Interval, interval, wilson
from gateway.stats.prices import ComputePrice
from gateway.stats.query_arguments import read_names

MIN_SESSIONS = 20
"""Sessions in each group below which no interval is given."""

_MAX_SAMPLES = 10_000
"""Requests kept in each group."""
_MAX_OF_SESSION = 200
"""Requests kept of one session."""
_DRAWS = 400
_MAX_WEIGHTS = 2_000_000
"""Weights (draws times requests) that are computed at once; bounds time and memory of an answer."""
_HASHES = 1 << 64
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_LEAST_VALUES = {"p50": 6, "p95": 72, "p99": 368}
"""Values below which a quantile has no interval: all of them may lie below it, with a probability of more than 2.5 %
(``share ** n``, from the binomial distribution of the number of values below it)."""
_PER = 1000
_OFF = "There is no experiment. Set experiment.cold_share, such as 0.05, to hold out a share of the traffic."


class _Samples:
    """The samples of one group and model: all, or those of sessions drawn by their number.

    If there are too many, every second session is left out, so that those kept cover the whole time evenly. Of one
    session only the first requests are kept, so that a busy one does not displace the others.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.failed = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.confirmed_tokens = 0
        self.kept: list[ExperimentSample] = []
        self._below = _HASHES
        self._of: Counter[int] = Counter()

    def add(self, sample: ExperimentSample) -> None:
        self.requests += 1
        self.failed += sample.failed
        if sample.complete:
            self.prompt_tokens += sample.prompt_tokens
            self.cached_tokens += sample.cached_tokens
            self.confirmed_tokens += sample.prompt_tokens if sample.confirmed else 0
        if _spread(sample.session) >= self._below or self._of[sample.session] >= _MAX_OF_SESSION:
            return
        self._of[sample.session] += 1
        self.kept.append(sample)
        while len(self.kept) > _MAX_SAMPLES:
            self._below //= 2
            self.kept = [each for each in self.kept if _spread(each.session) < self._below]
            self._of = Counter(each.session for each in self.kept)


def _spread(session: int) -> int:
    """A number that is spread evenly and independent of the group (Fibonacci hashing; Knuth, TAOCP 3, 6.4)."""
    return (session ^ session >> 29) * 0x9E3779B97F4A7C15 % _HASHES


def _on(gpus: float, sample: ExperimentSample) -> ExperimentSample:
    """A sample with GPU seconds in place of seconds."""
    return msgspec.structs.replace(sample, prefill_seconds_per_token=sample.prefill_seconds_per_token * gpus)


class ExperimentResults:
    """What the requests of both groups took.

    Args:
        settings: The experiment's settings, as the answer repeats them; ``since`` is when they were applied, in Unix
            seconds. Empty without an experiment.
    """

    def __init__(self, settings: Mapping[str, float | str]) -> None:
        self._begin(settings)

    def configure(self, settings: Mapping[str, float | str]) -> None:
        """Apply other settings: a new experiment begins, because other requests belong to the groups."""
        if {**settings, "since": 0} != {**self._settings, "since": 0}:
            self._begin(settings)

    def _begin(self, settings: Mapping[str, float | str]) -> None:
        self._settings = dict(settings)
        self._since = float(self._settings.get("since", 0))
        self._samples: dict[tuple[str, ExperimentGroup], _Samples] = {}

    def add(self, sample: ExperimentSample, gpus: float) -> None:
        """Add a request; ``gpus`` per replica of its model."""
        if sample.at < self._since:
            return  # of the experiment before: settings overtake requests that wait
        key = sample.model, sample.group
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = _Samples()
        samples.add(sample if gpus == 1 else _on(gpus, sample))

    def answer(self, arguments: Mapping[str, str], price: ComputePrice) -> dict[str, object]:
        """The comparison, JSON-ready. Models are not mixed, because their times differ.

        Args:
            arguments: ``model``: the model to compare; without it, the one with the most requests.
            price: Price of GPU time.

        Raises:
            BadRequest: A parameter is unknown.
        """
        wanted = read_names(arguments, ("model",)).get("model")
        if not self._settings:
            return {"running": False, "verdict": _OFF}
        models = sorted({name for name, _ in self._samples}, key=self._requests_of, reverse=True)
        model = wanted or next(iter(models), None)
        groups = [self._samples.get((model or "", group), _Samples()) for group in ExperimentGroup]
        return {
            "running": True,
            **self._settings,
            "model": model,
            "models": models,
            "level": LEVEL,
            **_compared(groups, price),
        }

    def _requests_of(self, model: str) -> int:
        return sum(samples.requests for (name, _), samples in self._samples.items() if name == model)


def _compared(groups: Sequence[_Samples], price: ComputePrice) -> dict[str, object]:
    measured = [_measured(samples, number) for number, samples in enumerate(groups)]
    sessions = min(found.sessions for found in measured)
    enough = sessions >= MIN_SESSIONS
    assisted, held_out = measured
    differences = {
        name: _difference(assisted.figures[name], held_out.figures[name], sessions)
        if enough and assisted.has_interval(name) and held_out.has_interval(name)
        else None
        for name in assisted.figures
    }
    if enough:
        differences["error_share"] = _bounded_difference(assisted.errors, held_out.errors)
    shown: dict[str, object] = {
        "groups": {
            group.value: found.shown(samples, price)
            for group, samples, found in zip(ExperimentGroup, groups, measured, strict=True)
        },
        "difference": {name: differences[name] for name in assisted.figures},
        "enough": enough,
        "needed_sessions": max(MIN_SESSIONS - sessions, 0),
        "verdict": _verdict(differences, sessions),
    }
    saved = differences["gpu_seconds"]
    if saved is not None:
        times = groups[0].requests
        shown["saved_gpu_seconds"] = {key: round(value * times, 3) for key, value in _bounds(saved).items()}
        if price.per_gpu_hour is not None:
            shown["saved_cost"] = {key: price.of(value * times) for key, value in _bounds(saved).items()}
    return shown


class _Measured:
    """The figures of a group: each the estimate and those of the draws.

    Args:
        sessions: Number of sessions among the samples.
        figures: By name.
        values: Number of values by name, of those figures whose interval needs a number of them.
    """

    def __init__(self, sessions: int, figures: Mapping[str, Floats], values: Mapping[str, int]) -> None:
        self.sessions = sessions
        self.figures = figures
        self._values = values

    @property
    def errors(self) -> Interval | None:
        """The share of failed requests. Counted as if each session were one request, because errors come together."""
        share = float(self.figures["error_share"][0])
        return wilson(share, self.sessions) if self.sessions else None

    def has_interval(self, name: str) -> bool:
        """Whether there are enough sessions, and enough values for a quantile."""
        ending = name.rpartition("_")[2]
        return self.sessions >= MIN_SESSIONS and self._values.get(name, 0) >= _LEAST_VALUES.get(ending, 0)

    def shown(self, samples: _Samples, price: ComputePrice) -> dict[str, object]:
        return {
            "requests": samples.requests,
            "failed": samples.failed,
            "prompt_tokens": samples.prompt_tokens,
            "cached_tokens": samples.cached_tokens,
            "confirmed_share": round(samples.confirmed_tokens / samples.prompt_tokens, 4)
            if samples.prompt_tokens
            else None,
            "sampled_requests": len(samples.kept),
            "sampled_sessions": self.sessions,
            **{name: self._figure(name) for name in self.figures},
            "cost_per_1000_requests": None
            if not samples.kept
            else price.of(float(self.figures["gpu_seconds"][0]) * _PER),
        }

    def _figure(self, name: str) -> dict[str, float | None] | None:
        if name == "error_share":
            found = self.errors if self.sessions >= MIN_SESSIONS else None
        else:
            found = interval(self.figures[name], self.sessions) if self.has_interval(name) else None
        if found is not None:
            return {**_bounds_of(found)}
        value = float(self.figures[name][0])
        return None if math.isnan(value) else {"value": round(value, 6), "low": None, "high": None}


def _measured(samples: _Samples, number: int) -> _Measured:
    kept = samples.kept
    draws = Draws([each.session for each in kept], min(_DRAWS, _MAX_WEIGHTS // max(len(kept), 1)), number)
    nan = float("nan")
    complete = [each.complete for each in kept]
    prompt = _column([each.prompt_tokens if each.complete else 0 for each in kept])
    cached = _column([each.cached_tokens if each.complete else 0 for each in kept])
    per_token = _column([each.prefill_seconds_per_token for each in kept])
    ttft = _column([nan if each.ttft_seconds is None or not each.complete else each.ttft_seconds for each in kept])
    seconds = _column([each.seconds if whole else nan for each, whole in zip(kept, complete, strict=True)])
    gpu_seconds = np.where(np.array(complete, bool), (prompt - cached) * per_token, nan)
    figures = {
        "hit_rate": draws.ratio(cached, prompt),
        "error_share": draws.mean(_column([float(each.failed) for each in kept])),
        "gpu_seconds": draws.mean(gpu_seconds),
    }
    counts: dict[str, int] = {}
    for name, values in (("ttft", ttft), ("total", seconds)):
        figures[f"{name}_mean"] = draws.mean(values)
        known = int(np.count_nonzero(~np.isnan(values)))
        counts |= {f"{name}_{quantile}": known for quantile in _QUANTILES}
        for quantile, found in zip(_QUANTILES, draws.quantiles(values, list(_QUANTILES.values())), strict=True):
            figures[f"{name}_{quantile}"] = found
    return _Measured(draws.sessions, figures, counts)


def _column(values: Sequence[float]) -> Floats:
    return np.array(values, np.float64)


def _difference(assisted: Floats, held_out: Floats, sessions: int) -> dict[str, float | str] | None:
    """Held out less assisted, with the share of the held-out value; None if it cannot be computed."""
    draws = min(len(assisted), len(held_out))
    found = interval(held_out[:draws] - assisted[:draws], sessions)
    if found is None:
        return None
    outside = found.low > 0 or found.high < 0
    base = abs(float(held_out[0]))
    share = {"share": round(found.value / base, 4)} if base else {}
    return {**_bounds_of(found), **share, "verdict": "differs" if outside else "noise"}


def _bounded_difference(assisted: Interval | None, held_out: Interval | None) -> dict[str, float | str] | None:
    """The difference of two shares, by Newcombe's hybrid score interval (*Statistics in Medicine* 17, 1998)."""
    if assisted is None or held_out is None:
        return None
    value = held_out.value - assisted.value
    below = math.hypot(held_out.value - held_out.low, assisted.high - assisted.value)
    above = math.hypot(held_out.high - held_out.value, assisted.value - assisted.low)
    found = Interval(value, value - below, value + above)
    outside = found.low > 0 or found.high < 0
    return {**_bounds_of(found), "verdict": "differs" if outside else "noise"}


def _bounds_of(found: Interval) -> dict[str, float]:
    return {"value": round(found.value, 6), "low": round(found.low, 6), "high": round(found.high, 6)}


def _bounds(difference: Mapping[str, float | str]) -> dict[str, float]:
    return {key: float(difference[key]) for key in ("value", "low", "high")}


def _verdict(differences: Mapping[str, Mapping[str, float | str] | None], sessions: int) -> str:
    """The comparison in one sentence."""
    if sessions < MIN_SESSIONS:
        return (
            f"Too few sessions to compare: {sessions} in the smaller group, {MIN_SESSIONS} are needed. Wait, or raise"
            " experiment.cold_share."
        )
    parts = []
    for name, title in (("ttft_p50", "the median time to first token"), ("gpu_seconds", "prefill per request")):
        found = differences.get(name)
        if found is None or "share" not in found:
            continue
        if found["verdict"] == "noise":
            parts.append(f"{title} does not differ beyond noise")
        else:
            share = float(found["share"])
            parts.append(f"{title} is {abs(share):.0%} {'lower' if share > 0 else 'higher'} with the gateway")
    return ("; ".join(parts)[:1].upper() + "; ".join(parts)[1:] + ".") if parts else "No request of either group ended."
