"""Creates OpenTelemetry spans of finished traces, and sends them from the SDK's own thread. Requests never wait for it.

Spans are created when the request has ended, from recorded times. Starting and ending them with the SDK's tracers would
take four times as long during the request, and their ids are needed before they start.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway.config.telemetry_settings import TracingSettings
from gateway.core.api_keys import redacted
from gateway.telemetry.tracing.request_trace import RequestTrace, Span

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

    def spans(self, trace: RequestTrace) -> Iterator[ReadableSpan]:
        """The spans of stages and attempts, then that of the request, so that it arrives last."""
        # Client input: a value that looks like an API key is not sent to the collector.
        state = TraceState.from_header([trace.state]) if trace.state and redacted(trace.state) == trace.state else None
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


_log = structlog.get_logger("gateway.telemetry")

_PATH = "/v1/traces"
_QUEUED_SPANS = 8192
"""Capacity of the queue in spans of about 1 KB. Beyond it whole traces are dropped."""
_BATCH_SPANS = 256
"""Small, because encoding a batch holds the interpreter lock for some milliseconds and delays requests."""
_DELAY_SECONDS = 2.0
_EXPORT_TIMEOUT_SECONDS = 5.0
_FLUSH_SECONDS = 1.0


class SpanExport:
    """Exports finished traces by OTLP over HTTP.

    Args:
        settings: The collector.
        on_error: Called for every batch that could not be sent, and every dropped trace; from any thread.
    """

    def __init__(self, settings: TracingSettings, on_error: Callable[[], None]) -> None:
        resource = Resource.create(
            {
                "service.name": settings.service_name,
                "service.version": _version(),
                "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            }
        )
        self._maker = SpanMaker(resource, _version())
        self._on_error = on_error
        self._loss_log = _LossLog(settings.endpoint)
        self._exporter = _ReportingExporter(
            OTLPSpanExporter(
                endpoint=settings.endpoint.removesuffix(_PATH) + _PATH,
                headers={name: value.get_secret_value() for name, value in settings.headers.items()},
                timeout=_EXPORT_TIMEOUT_SECONDS,
            ),
            self._loss_log,
            on_error,
        )
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=_QUEUED_SPANS,
            schedule_delay_millis=_DELAY_SECONDS * 1e3,
            max_export_batch_size=_BATCH_SPANS,
            export_timeout_millis=_EXPORT_TIMEOUT_SECONDS * 1e3,
        )
        self._queued = 0
        """Spans passed to the processor so far. The exporter counts, in its thread, those it has taken."""

    def write(self, trace: RequestTrace) -> None:
        """Take the trace of an ended request. Never raises and never waits."""
        try:
            spans = list(self._maker.spans(trace))
            if self._queued - self._exporter.taken + len(spans) > _QUEUED_SPANS:
                self._loss_log.lost("more spans than can be sent")
                self._on_error()
                return
            self._queued += len(spans)
            for span in spans:
                self._processor.on_end(span)
        except Exception as error:  # noqa: BLE001 - tracing must not fail the request
            self._loss_log.lost(type(error).__name__)
            self._on_error()

    async def stop(self) -> None:
        """Send waiting traces, within a few seconds."""
        flushed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def flush() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # the loop is closed: it took too long
                loop.call_soon_threadsafe(flushed.set)

        # Not an executor thread of the loop: those are joined at exit without a time limit.
        threading.Thread(target=flush, name="tracing-flush", daemon=True).start()
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await flushed.wait()
        except TimeoutError:
            self._on_error()
            _log.warning("tracing_not_flushed", lost_spans=self._queued - self._exporter.taken)


class _ReportingExporter(SpanExporter):
    """Wraps an exporter, and reports its failures.

    Attributes:
        taken: Spans taken so far.
    """

    def __init__(self, exporter: SpanExporter, loss_log: "_LossLog", on_error: Callable[[], None]) -> None:
        self.taken = 0
        self._exporter = exporter
        self._loss_log = loss_log
        self._on_error = on_error

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        _FIRST_MESSAGE.text = ""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - the thread must not end
            self._loss_log.lost(type(error).__name__)
            result = SpanExportResult.FAILURE
        self.taken += len(spans)
        if result is SpanExportResult.SUCCESS:
            self._loss_log.recovered()
        else:
            self._loss_log.lost(_FIRST_MESSAGE.text)
            self._on_error()
        return result

    def shutdown(self) -> None:
        """Stop; abandons a batch that is being retried."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """See ``SpanExporter``; there is no queue here."""
        return self._exporter.force_flush(timeout_millis)


class _LossLog:
    """Logs the first loss of traces, and the recovery."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._is_losing = False

    def lost(self, reason: str) -> None:
        """Report lost traces."""
        if not self._is_losing:
            self._is_losing = True
            _log.error("tracing_failing", endpoint=self._endpoint, reason=reason, instead="traces are left out")

    def recovered(self) -> None:
        """Report that sending works."""
        if self._is_losing:
            self._is_losing = False
            _log.info("tracing_works_again", endpoint=self._endpoint)


class _FirstMessageHandler(logging.Handler):
    """Captures the log messages of OpenTelemetry's packages, which repeat with every batch.

    Attributes:
        text: The first message about the current batch, which names the cause; empty for none.
    """

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        self.text = self.text or record.getMessage().partition("\n")[0][:300]


def _version() -> str:
    try:
        return version("prefix-gateway")
    except PackageNotFoundError:  # running from a source tree without installation
        return "unknown"


_FIRST_MESSAGE = _FirstMessageHandler(logging.WARNING)
_packages = logging.getLogger("opentelemetry")
_packages.addHandler(_FIRST_MESSAGE)
_packages.propagate = False
