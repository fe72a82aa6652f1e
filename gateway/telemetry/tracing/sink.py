"""What takes finished traces."""

from typing import Protocol

from gateway.telemetry.tracing.request_trace import FinishedTrace


class TraceSink(Protocol):
    """Takes finished traces. Must not raise and must not wait."""

    def write(self, trace: FinishedTrace) -> None:
        """A request is over."""
        ...

    async def stop(self) -> None:
        """Send what is waiting, within some seconds."""
        ...
