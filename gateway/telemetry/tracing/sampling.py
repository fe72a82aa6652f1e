"""Which requests are traced."""

from collections.abc import Callable, Sequence

from gateway.config.tracing_settings import TracingSettings
from gateway.telemetry.tracing.request_trace import RequestTrace, Unrecorded
from gateway.telemetry.tracing.sink import TraceSink
from gateway.telemetry.tracing.trace_context import SAMPLED, Header, new_span_id, new_trace_id, parent_of, trace_headers

_LOW_BITS = (1 << 64) - 1
_UNTOUCHED = Unrecorded(None)


class Tracing:
    """A ``Tracer``. Where the client says that its own part of the trace is recorded, or is not, so is this one;
    a share of the other requests is.

    Args:
        sample_ratio: Share of the requests without a client's trace, 0 to 1.
        sink: Takes what was recorded.
    """

    def __init__(self, sample_ratio: float, sink: TraceSink) -> None:
        # As OpenTelemetry's TraceIdRatioBased does, so that others who decide by the trace's id decide alike.
        self._bound = round(sample_ratio * (_LOW_BITS + 1))
        self._sink = sink

    def begin(self, headers: Sequence[Header]) -> RequestTrace | Unrecorded:
        """See ``Tracer``."""
        parent = parent_of(headers)
        if parent is not None:
            if not parent.flags & SAMPLED:
                return _UNTOUCHED
            return RequestTrace(self._sink.write, parent.trace_id, parent.span_id, parent.flags, parent.state)
        trace_id = new_trace_id()
        if trace_id & _LOW_BITS < self._bound:
            return RequestTrace(self._sink.write, trace_id, None, SAMPLED, "")
        # Told nothing, an engine with traces of its own would decide for itself.
        return Unrecorded(trace_headers(trace_id, new_span_id(), 0, ""))

    async def stop(self) -> None:
        """Send what is waiting; returns after some seconds at most, whatever the collector does."""
        await self._sink.stop()


def start_tracing(settings: TracingSettings, on_error: Callable[[], None]) -> Tracing | None:
    """Begin to trace; None where it is turned off.

    Args:
        settings: Where to, and how much.
        on_error: Called for every batch that could not be sent, and every trace there was no room for; from any thread.
    """
    if not settings.enabled:
        return None
    from gateway.telemetry.tracing.export import SpanExport

    return Tracing(settings.sample_ratio, SpanExport(settings, on_error))
