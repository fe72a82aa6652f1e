"""Whether OpenTelemetry is there."""

from importlib.util import find_spec

_NEEDED = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter")


def is_installed() -> bool:
    """Whether the packages of the extra ``tracing`` are installed."""
    try:
        return all(find_spec(name) is not None for name in _NEEDED)
    except ModuleNotFoundError:  # not even the package that the module would be in
        return False
