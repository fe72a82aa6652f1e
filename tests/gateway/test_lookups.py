"""Name lookups of the event loop: apart from each other, and shared where they are equal."""

import asyncio
import socket
import threading

import pytest
from running_gateway import eventually

from gateway.server import event_loop


class Names:
    """A resolver whose names answer when a test says so."""

    def __init__(self, monkeypatch):
        self.asked = []
        self.answers = {}
        self.open = threading.Event()
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        self._real = socket.getaddrinfo
        monkeypatch.setattr(event_loop.socket, "getaddrinfo", self.look_up)

    def look_up(self, host, port, family=0, kind=0, proto=0, flags=0):
        if flags & socket.AI_NUMERICHOST:
            return self._real(host, port, family, kind, proto, flags)
        with self._lock:
            self.asked.append(host)
            self._now += 1
            self.most = max(self.most, self._now)
        if "hangs" in host:
            self.open.wait(30)
        with self._lock:
            self._now -= 1
        if host in self.answers:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in self.answers[host]]
        raise socket.gaierror(socket.EAI_NONAME, "no such name")


@pytest.fixture
def names(monkeypatch):
    found = Names(monkeypatch)
    yield found
    found.open.set()


@pytest.fixture
async def port():
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def connect(host, port, seconds=60.0):
    async with asyncio.timeout(seconds):
        _, writer = await asyncio.open_connection(host, port)
        writer.close()


async def test_names_that_hang_do_not_hold_up_another_one(names, port):
    names.answers["good"] = ["127.0.0.1"]
    stuck = [asyncio.create_task(connect(f"hangs-{number}", port)) for number in range(20)]
    await asyncio.sleep(0.05)
    await connect("good", port)
    assert not any(task.done() for task in stuck)
    for task in stuck:
        task.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)


async def test_equal_lookups_share_a_thread_and_those_given_up_are_not_begun(names, port, monkeypatch):
    monkeypatch.setattr(event_loop, "_MAX_LOOKUPS", 4)
    names.answers |= {"hangs-0": ["127.0.0.1"], "good": ["127.0.0.1"]}
    first = [asyncio.create_task(connect("hangs-0", port)) for _ in range(50)]
    others = [asyncio.create_task(connect(f"hangs-{number % 10}", port)) for number in range(1, 50)]
    await eventually(lambda: len(names.asked) >= 4)
    await asyncio.sleep(0.1)  # no further one follows
    assert sorted(names.asked) == ["hangs-0", "hangs-1", "hangs-2", "hangs-3"]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    last = asyncio.create_task(connect("good", port))
    names.open.set()
    await asyncio.gather(*first, last)
    assert sorted(names.asked) == ["good", "hangs-0", "hangs-1", "hangs-2", "hangs-3"]
    assert names.most == 4


async def test_every_address_is_tried(names, port):
    names.answers["several"] = ["127.0.0.9", "127.0.0.1"]
    await connect("several", port)
    names.answers["none"] = []
    with pytest.raises(OSError, match="no addresses"):
        await connect("none", port)
    with pytest.raises(socket.gaierror):
        await connect("unknown", port)
    names.answers["away"] = ["127.0.0.8", "127.0.0.9"]
    with pytest.raises(OSError, match="refused"):
        await connect("away", port)


async def test_addresses_need_no_lookup(names, port):
    await connect("127.0.0.1", port)
    assert names.asked == []


async def test_blocking_calls_run_in_threads_that_are_not_joined(names):
    began = threading.Event()

    def hang():
        began.set()
        names.open.wait(30)
        return threading.current_thread().daemon

    task = asyncio.create_task(asyncio.to_thread(hang))
    while not began.is_set():
        await asyncio.sleep(0.01)
    names.open.set()
    assert await task
