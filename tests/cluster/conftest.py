"""A real Redis, and stores of gateways that use it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
from message_recorder import MessageRecorder
from patience import HANG_SECONDS
from pydantic import SecretStr
from redis_server import PATIENT, SECRET, RedisServer

from gateway.cluster import connect
from gateway.cluster.peer_channel import PeerChannel
from gateway.cluster.redis_context import RedisContextStore


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Errors(list[str]):
    """What ``on_error`` was called with."""


Open = Callable[..., RedisContextStore]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def errors() -> Errors:
    return Errors()


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as logs:
        yield logs


@pytest.fixture
async def store_at(errors: Errors) -> AsyncIterator[Open]:
    """Opens stores, each that of one gateway, and closes them in the end.

    With a clock that stands still, a store that fails once is not tried again.
    """
    async with AsyncExitStack() as stack:

        def opened(url: str, **options: Any) -> RedisContextStore:
            chosen = {"ttl_seconds": 60.0, "on_error": errors.append, "deadline_seconds": PATIENT}
            store = RedisContextStore(SecretStr(url), SECRET, **(chosen | options))
            store.start()
            stack.push_async_callback(store.stop)
            return store

        yield opened


@pytest.fixture
def greeted(soon: Callable[[Callable[[], Any]], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    """Waits until all stores that were opened have said hello to Redis: one that goes before that fails once more."""

    def all_have() -> bool:
        return not [task for task in asyncio.all_tasks() if task.get_name() == "state-greeting"]

    return lambda: soon(all_have)


@pytest.fixture
def patient_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which Redis answers, late on a busy machine: no connection is given up."""
    monkeypatch.setattr(connect, "_CONNECT_SECONDS", PATIENT)
    monkeypatch.setattr(connect, "_HANG_SECONDS", PATIENT)


@pytest.fixture
async def exchange_at(errors: Errors) -> AsyncIterator[Callable[..., PeerChannel]]:
    """Opens exchanges, each that of one gateway with these parts, and closes them in the end."""
    async with AsyncExitStack() as stack:

        def opened(url: str, *, secret: SecretStr = SECRET, **parts: MessageRecorder) -> PeerChannel:
            exchange = PeerChannel(
                SecretStr(url), secret, parts, types=dict.fromkeys(parts, bytes), on_error=errors.append
            )
            exchange.start()
            stack.push_async_callback(exchange.stop)
            return exchange

        yield opened


@pytest.fixture
def soon() -> Callable[[Callable[[], Any]], Awaitable[Any]]:
    """Waits until something is so; returns it."""

    async def wait(what: Callable[[], Any]) -> Any:
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                found = what()
                if asyncio.iscoroutine(found):
                    found = await found
                if found:
                    return found
                await asyncio.sleep(0.01)

    return wait
