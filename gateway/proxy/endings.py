"""How responses end that are not complete: the last events of a stream, and what a cancellation means."""

import asyncio
from collections.abc import Mapping

import orjson

from gateway.core.errors import DeadlineExceeded, GatewayError, ShuttingDown, UpstreamFailed, UpstreamTimeout
from gateway.core.outcome import Ending
from gateway.core.ports import Sink

_BROKEN_OFF: Mapping[Ending, tuple[str, str, type[GatewayError]]] = {
    Ending.TIMED_OUT: ("The replica stayed silent too long", "replica_timeout", UpstreamTimeout),
    Ending.EXPIRED: ("The time that the request may take is over", "deadline_exceeded", DeadlineExceeded),
    Ending.REFUSED: ("The replica refuses the gateway", "replica_refused", UpstreamFailed),
    Ending.INTERRUPTED: ("The gateway is shutting down", "shutting_down", ShuttingDown),
}
_REPLICA_FAILED = ("The replica broke off", "replica_disconnected", UpstreamFailed)


def broken_off(ending: Ending) -> bytes:
    """The last events of a stream that broke off: the error in the API's format, then the end mark."""
    reason, code, kind = _BROKEN_OFF.get(ending, _REPLICA_FAILED)
    error = {
        "message": f"{reason}; the answer is incomplete. Send the request again.",
        "type": kind.type,
        "param": None,
        "code": code,
    }
    return b"data: " + orjson.dumps({"error": error}) + b"\n\ndata: [DONE]\n\n"


def ending_of_cancellation(sink: Sink) -> Ending:
    """To be called in ``except CancelledError``: the ending for a disconnect or a shutdown, else re-raises."""
    if not (sink.gone or sink.interrupted):
        raise  # noqa: PLE0704 - re-raises the CancelledError being handled
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
    return Ending.CLIENT_GONE if sink.gone else Ending.INTERRUPTED
