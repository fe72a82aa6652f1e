"""All targets by name."""

from collections.abc import Callable

from benchmarks.fuzz import body, events, framing, response, sse, usage

TARGETS = {target.name: target for target in (events.TARGET, framing.TARGET, response.TARGET, sse.TARGET, usage.TARGET)}

RUNS: dict[str, Callable[[float, int], int]] = {"body": body.run}
"""Fuzzers that generate their input by themselves: called with seconds and a seed, they return how much they tried."""
