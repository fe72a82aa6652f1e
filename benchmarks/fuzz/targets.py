"""All targets by name."""

from benchmarks.fuzz import response, sse, usage

TARGETS = {target.name: target for target in (response.TARGET, sse.TARGET, usage.TARGET)}
