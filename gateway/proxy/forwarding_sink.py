"""The state of a client's connection, passed on by a ``Sink`` that changes what is written to it."""

from collections.abc import Callable

from gateway.core.ports import Sink


class ForwardingSink:
    """The members of a ``Sink`` that the client's sink behind it answers."""

    _sink: Sink  # set by the subclass itself: a call to set it would be one more for every request

    @property
    def gone(self) -> bool:
        """See ``Sink``."""
        return self._sink.gone

    @property
    def interrupted(self) -> bool:
        """See ``Sink``."""
        return self._sink.interrupted

    @property
    def congested(self) -> bool:
        """See ``Sink``."""
        return self._sink.congested

    def on_writable(self, callback: Callable[[], None]) -> None:
        """See ``Sink``."""
        self._sink.on_writable(callback)
