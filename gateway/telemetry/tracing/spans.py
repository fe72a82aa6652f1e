"""Creates OpenTelemetry spans of a finished trace.

Spans are created when the request has ended, from recorded times. Starting and ending them with the SDK's tracers would
take four times as long during the request, and their ids are needed before they start.
"""

from collections.abc import Iterator

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway.core.api_keys import looks_like_key
from gateway.telemetry.tracing.request_trace import FinishedTrace, Span

_FLAGS = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)


class SpanMaker:
    """Creates spans.

    Args:
        resource: OpenTelemetry resource of the gateway.
        version: Version of the gateway.
    """

    def __init__(self, resource: Resource, version: str) -> None:
        self._resource = resource
        self._scope = InstrumentationScope("gateway", version)

    def spans(self, trace: FinishedTrace) -> Iterator[ReadableSpan]:
        """The spans of stages and attempts, then that of the request, so that it arrives last."""
        # Client input: a value that looks like an API key is not sent to the collector.
        state = TraceState.from_header([trace.state]) if trace.state and not looks_like_key(trace.state) else None
        own = SpanContext(trace.trace_id, trace.request.id, is_remote=False, trace_flags=_FLAGS, trace_state=state)
        parent = None
        if trace.parent_id is not None:
            parent = SpanContext(trace.trace_id, trace.parent_id, is_remote=True, trace_flags=_FLAGS)
        for spans, kind in ((trace.stages, SpanKind.INTERNAL), (trace.calls, SpanKind.CLIENT)):
            for span in spans:
                context = SpanContext(trace.trace_id, span.id, is_remote=False, trace_flags=_FLAGS, trace_state=state)
                yield self._span(span, context, own, kind)
        yield self._span(trace.request, own, parent, SpanKind.SERVER)

    def _span(self, span: Span, context: SpanContext, parent: SpanContext | None, kind: SpanKind) -> ReadableSpan:
        if span.failure:
            span.attributes.setdefault("error.type", span.failure)
        return ReadableSpan(
            span.name,
            context,
            parent,
            self._resource,
            attributes=span.attributes,
            events=() if span.first_byte is None else (Event("first_byte", timestamp=span.first_byte),),
            kind=kind,
            status=Status(StatusCode.ERROR, span.failure) if span.failure else _UNSET,
            start_time=span.began,
            end_time=span.ended,
            instrumentation_scope=self._scope,
        )
