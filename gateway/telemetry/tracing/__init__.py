"""OpenTelemetry traces: a span per request, and below it one per room it went through.

While a request is on its way only times are noted (``request``); whether it is noted at all, and under which ids, is
decided when it comes (``sampling``, ``context``). When it is over, ``spans`` makes OpenTelemetry's spans from it, and
``export`` sends them from a thread of its own. Only these two know OpenTelemetry, which need not be installed.
"""

from gateway.telemetry.tracing.sampling import Tracing, start_tracing

__all__ = ["Tracing", "start_tracing"]
