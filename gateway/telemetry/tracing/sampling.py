"""Decides which requests are traced.

Finished traces are passed to a ``SpanExport``.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gateway.config.telemetry_settings import TracingSettings
from gateway.telemetry.tracing.request_trace import RequestTrace, Unrecorded
from gateway.telemetry.tracing.trace_context import SAMPLED, Header, new_span_id, new_trace_id, parent_of, trace_headers

if TYPE_CHECKING:
    from gateway.telemetry.tracing.export import SpanExport


_LOW_BITS = (1 << 64) - 1
_UNTOUCHED = Unrecorded(None)


class Tracing:
    """Begins traces of requests. Neither raises nor waits.

    Follows the client's sampling decision if there is one, and samples a share of the other requests.

    Args:
        sample_ratio: Share of the requests without a client's trace, 0 to 1.
        sink: Takes finished traces.
    """

    def __init__(self, sample_ratio: float, sink: "SpanExport") -> None:
        # Like OpenTelemetry's TraceIdRatioBased, so that other samplers decide alike for the same trace id.
        self._bound = round(sample_ratio * (_LOW_BITS + 1))
        self._sink = sink

    def begin(self, headers: Sequence[Header]) -> RequestTrace | Unrecorded:
        """Begin the trace of a request.

        Args:
            headers: Its headers, names in lower case.
        """
        parent = parent_of(headers)
        if parent is not None:
            if not parent.flags & SAMPLED:
                return _UNTOUCHED
            return RequestTrace(self._sink.write, parent.trace_id, parent.span_id, parent.flags, parent.state)
        trace_id = new_trace_id()
        if trace_id & _LOW_BITS < self._bound:
            return RequestTrace(self._sink.write, trace_id, None, SAMPLED, "")
        # Without these headers an engine with its own tracing would sample on its own.
        return Unrecorded(trace_headers(trace_id, new_span_id(), 0, ""))

    async def stop(self) -> None:
        """Send waiting spans; returns after a few seconds at most, even if the collector does not answer."""
        await self._sink.stop()


def start_tracing(settings: TracingSettings, on_error: Callable[[], None]) -> Tracing | None:
    """Create the tracer; None if tracing is turned off.

    Args:
        settings: Collector and sample ratio.
        on_error: Called for every batch that could not be sent, and every dropped trace; from any thread.
    """
    if not settings.enabled:
        return None
    from gateway.telemetry.tracing.export import SpanExport

    return Tracing(settings.sample_ratio, SpanExport(settings, on_error))
