"""Tries one event source once: whether its publisher accepts a subscription, and whether its replay socket answers."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from gateway.core.kv_events import EventSource
from gateway.kv_events.zmq_sockets import Context, FrameUnreadable, Replay, Subscription
from gateway.tasks import in_daemon_thread

_MAX_BYTES = 2**20
_BEYOND_ALL = 2**64 - 1
"""A sequence number that no batch has: a replay from there on consists of its end mark only."""

_POLL_SECONDS = 0.02
_END_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class SourceTrial:
    """The result.

    Attributes:
        connected: Whether the publisher accepted the subscription.
        replays: Whether the replay socket answered; None if the source has none.
        problem: Why an address cannot be used at all; empty otherwise.
    """

    connected: bool
    replays: bool | None
    problem: str = ""


async def try_source(source: EventSource, timeout_seconds: float) -> SourceTrial:
    """Connect to both sockets of a source, and disconnect. Never raises for what the other side does.

    Args:
        source: The source.
        timeout_seconds: Limit for each of the two, which are tried at the same time.
    """
    # A context of its own: a name look-up that does not end blocks nothing else.
    context: Context = zmq.Context()
    try:
        connected, replays = await asyncio.gather(
            _connects(context, source, timeout_seconds),
            _replays(context, source, timeout_seconds),
        )
        return SourceTrial(connected, replays)
    except zmq.ZMQError as error:
        return SourceTrial(False, None, str(error))
    finally:
        await asyncio.wait([in_daemon_thread(context.term, name="source-trial-end")], timeout=_END_SECONDS)


async def _connects(context: Context, source: EventSource, timeout_seconds: float) -> bool:
    subscription = Subscription(context, source.events, source.topic, lambda: None, max_bytes=_MAX_BYTES)
    try:
        return await _within(timeout_seconds, lambda: subscription.link_change() is True)
    finally:
        subscription.close()


async def _replays(context: Context, source: EventSource, timeout_seconds: float) -> bool | None:
    if source.replay is None:
        return None
    replay = Replay(context, source.replay, _BEYOND_ALL, lambda: None, max_bytes=_MAX_BYTES)

    def ended() -> bool:
        with contextlib.suppress(FrameUnreadable):
            while (frame := replay.receive()) is not None:
                if frame[0] < 0:
                    return True
        return False

    try:
        return await _within(timeout_seconds, ended)
    finally:
        replay.close()


async def _within(timeout_seconds: float, holds: Callable[[], bool]) -> bool:
    """Whether something comes true in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            # By polls: the descriptor of a ZeroMQ socket signals only once, and this is short.
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
            return True
    return False
