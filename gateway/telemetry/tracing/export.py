"""Sends spans to an OpenTelemetry collector, from the SDK's own thread. Requests never wait for it."""

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from gateway.config.tracing_settings import TracingSettings
from gateway.telemetry.tracing.request_trace import FinishedTrace
from gateway.telemetry.tracing.spans import SpanMaker

_log = structlog.get_logger("gateway.telemetry")

_PATH = "/v1/traces"
_QUEUED_SPANS = 8192
"""Spans that may wait; about 1 KB each. More are left out, whole traces at a time."""
_BATCH_SPANS = 256
"""Encoding a batch takes the interpreter's lock for some milliseconds, which requests feel: so they are small."""
_DELAY_SECONDS = 2.0
_EXPORT_TIMEOUT_SECONDS = 5.0
_FLUSH_SECONDS = 1.0


class SpanExport:
    """A ``TraceSink`` that exports by OTLP over HTTP.

    Args:
        settings: Where to.
        on_error: Called for every batch that could not be sent, and every trace there was no room for; from any thread.
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
        self._alarm = _Alarm(settings.endpoint)
        self._exporter = _Watched(
            OTLPSpanExporter(
                endpoint=settings.endpoint.removesuffix(_PATH) + _PATH,
                headers={name: value.get_secret_value() for name, value in settings.headers.items()},
                timeout=_EXPORT_TIMEOUT_SECONDS,
            ),
            self._alarm,
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
        """Spans given to the processor so far. Those it took out again are counted by the exporter, in its thread."""

    def write(self, trace: FinishedTrace) -> None:
        """See ``TraceSink``."""
        try:
            spans = list(self._maker.spans(trace))
            if self._queued - self._exporter.taken + len(spans) > _QUEUED_SPANS:
                self._alarm.raised("more spans than can be sent")
                self._on_error()
                return
            self._queued += len(spans)
            for span in spans:
                self._processor.on_end(span)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request must not hear of it
            self._alarm.raised(type(error).__name__)
            self._on_error()

    async def stop(self) -> None:
        """See ``TraceSink``."""
        flushed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def flush() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with contextlib.suppress(RuntimeError):  # the loop is closed: it took too long
                loop.call_soon_threadsafe(flushed.set)

        # Not one of the loop's own threads: those are waited for at the end, however long it takes.
        threading.Thread(target=flush, name="tracing-flush", daemon=True).start()
        try:
            async with asyncio.timeout(_FLUSH_SECONDS):
                await flushed.wait()
        except TimeoutError:
            self._on_error()
            _log.warning("tracing_not_flushed", lost_spans=self._queued - self._exporter.taken)


class _Watched(SpanExporter):
    """An exporter whose failures are noticed.

    Attributes:
        taken: Spans it was given so far.
    """

    def __init__(self, exporter: SpanExporter, alarm: "_Alarm", on_error: Callable[[], None]) -> None:
        self.taken = 0
        self._exporter = exporter
        self._alarm = alarm
        self._on_error = on_error

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch."""
        _FIRST_WORDS.text = ""
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - the thread has to go on
            self._alarm.raised(type(error).__name__)
            result = SpanExportResult.FAILURE
        self.taken += len(spans)
        if result is SpanExportResult.SUCCESS:
            self._alarm.over()
        else:
            self._alarm.raised(_FIRST_WORDS.text)
            self._on_error()
        return result

    def shutdown(self) -> None:
        """End; a batch that is being sent again is given up."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing waits here."""
        return self._exporter.force_flush(timeout_millis)


class _Alarm:
    """Says once that traces are lost, until they are not any more."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._is_raised = False

    def raised(self, reason: str) -> None:
        """Traces were lost."""
        if not self._is_raised:
            self._is_raised = True
            _log.error("tracing_failing", endpoint=self._endpoint, reason=reason, instead="traces are left out")

    def over(self) -> None:
        """Some were sent."""
        if self._is_raised:
            self._is_raised = False
            _log.info("tracing_works_again", endpoint=self._endpoint)


class _FirstMessages(logging.Handler):
    """Keeps what OpenTelemetry's packages say: they say it with every batch, and that is not for the log.

    Attributes:
        text: What they said first about the present batch, which names the cause; later on they only say that they gave
            up. Empty if nothing.
    """

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        self.text = self.text or record.getMessage().partition("\n")[0][:300]


def _version() -> str:
    try:
        return version("prefix-gateway")
    except PackageNotFoundError:  # running from a source tree that was never installed
        return "unknown"


_FIRST_WORDS = _FirstMessages(logging.WARNING)
_packages = logging.getLogger("opentelemetry")
_packages.addHandler(_FIRST_WORDS)
_packages.propagate = False
