"""OpenTelemetry traces: a span per request, with a child span per stage and per attempt at a replica.

In: the trace context of request headers, and the stages of a request. Out: spans sent to a collector. Start with
``sampling``, which decides whether to record a request; ``request_trace`` records times; ``export`` creates spans when
the request has ended, and sends them from a thread. Only ``export`` needs the OpenTelemetry packages.
"""

from gateway.telemetry.tracing.sampling import Tracing, start_tracing

__all__ = ["Tracing", "start_tracing"]
