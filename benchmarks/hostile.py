"""What a normal client notices of hostile ones, and what they cost the gateway.

    python -m benchmarks.hostile [--idle 10000] [--slow 1000] [--seconds 15]

A gateway in front of a simulated engine that takes hardly any time, as processes of their own. A normal client asks one
small question after the other on a kept connection; shown are the median and the 99th percentile of what its answers
take, and its errors: alone, beside each attack while that goes on, and at the end. Beside them stand the longest
answer to `/healthz` at the admin port, what the attackers were told, and the gateway's resident memory and open files
before, during and after the attack.

* idle: connections that say nothing; as many as that, or as the limit of open files lets in
* slow: requests of which a byte comes every second
* bodies: 16 MiB each, four at a time, in a member that nobody looks at
* text: 16 MiB of one message, two at a time
* messages: a million tiny messages in one body, two at a time
* members: two million members of the same name, two at a time
* nesting: 16 MiB of brackets, four at a time
* gzip: bodies that would be 1 GiB, declared as compressed, eight at a time
* endless: bodies without an end, eight at a time
* unread: streams whose client does not read them, four at a time

`--receive-seconds` (10) is the gateway's own limit, so that the end of idle and slow connections is seen as well. The
attackers are a process of their own.
"""

import argparse
import asyncio
import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.isolation import free_port, running, wait_for
from gateway.api.open_files import raise_open_files

MIB = 2**20
PATH = "/v1/chat/completions"
MEMBERS = b'"model":"m","max_tokens":1,"messages":[{"role":"user","content":"Hi"}]'


@dataclass
class Target:
    """A gateway.

    Attributes:
        pid: Of its process.
        port: The public one.
        admin_port: The other one.
    """

    pid: int
    port: int
    admin_port: int

    def memory(self) -> float:
        """Resident, in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@dataclass
class Seen:
    """What the normal client saw, and what the attackers were told.

    Attributes:
        times: Seconds that answers took.
        errors: Requests that were not answered with 200.
        health: The longest time that ``/healthz`` took.
        told: How attackers' requests ended, and how often.
    """

    times: list[float] = field(default_factory=list)
    errors: int = 0
    health: float = 0.0
    told: Counter[str] = field(default_factory=Counter)

    def quantile(self, share: float) -> float:
        ranked = sorted(self.times)
        return ranked[min(int(share * len(ranked)), len(ranked) - 1)] if ranked else float("nan")


Attack = Callable[[Target, Seen], Awaitable[None]]


def head(length: int | None, *lines: str) -> bytes:
    """Of a request whose body has so many bytes, or comes in chunks."""
    size = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    rest = "\r\n".join(("host: gateway", "content-type: application/json", size, *lines))
    return f"POST {PATH} HTTP/1.1\r\n{rest}\r\n\r\n".encode()


async def told(reader: asyncio.StreamReader) -> str:
    """The status of an answer, which is read to its end."""
    try:
        begun = await reader.readuntil(b"\r\n\r\n")
        length = next((line for line in begun.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
        await reader.readexactly(int(length.split(b":")[1]))
        return begun[9:12].decode()
    except asyncio.IncompleteReadError as error:
        return "broken" if error.partial else "closed"
    except ConnectionError:
        return "reset"


async def ask(port: int, raw: bytes) -> str:
    """A request on a connection of its own."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return "refused"
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(raw)
            await writer.drain()
        return await told(reader)
    finally:
        writer.transport.abort()


class Normal:
    """The normal client, and somebody who looks at ``/healthz``; both as long as it is entered."""

    def __init__(self, target: Target, seen: Seen) -> None:
        self._target = target
        self._seen = seen

    async def __aenter__(self) -> None:
        self._tasks = [asyncio.create_task(self._ask()), asyncio.create_task(self._look())]

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self) -> None:
        body = b"{" + MEMBERS + b"}"
        raw = head(len(body)) + body
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._target.port)
                status = "200"
                while status == "200":
                    began = time.perf_counter()
                    writer.write(raw)
                    status = await told(reader)
                    self._seen.times.append(time.perf_counter() - began)
                    await asyncio.sleep(0.02)
                writer.close()
            self._seen.errors += 1
            await asyncio.sleep(0.1)

    async def _look(self) -> None:
        raw = b"GET /healthz HTTP/1.1\r\nhost: gateway\r\n\r\n"
        while True:
            began = time.perf_counter()
            await ask(self._target.admin_port, raw)
            self._seen.health = max(self._seen.health, time.perf_counter() - began)
            await asyncio.sleep(0.1)


# Attacks: each goes on until it is cancelled.


def held(count: int, sends: Callable[[asyncio.StreamWriter, int], Coroutine[Any, Any, None]]) -> Attack:
    """Connections that are held for as long as the gateway lets them, and then made anew."""

    async def one(target: Target, seen: Seen, number: int) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            except OSError:
                seen.told["refused"] += 1
                await asyncio.sleep(1)
                continue
            sending = asyncio.create_task(sends(writer, number))
            try:
                seen.told[await told(reader)] += 1
            finally:
                sending.cancel()
                writer.transport.abort()
            await asyncio.sleep(1)

    async def attack(target: Target, seen: Seen) -> None:
        async with asyncio.TaskGroup() as connections:
            for number in range(count):
                connections.create_task(one(target, seen, number))
                if number % 100 == 99:
                    await asyncio.sleep(0.02)

    return attack


def silent(count: int) -> Attack:
    """Connections that say nothing, until they are closed; then they are made anew."""

    def opened(port: int) -> socket.socket | None:
        try:
            return socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            return None

    def open_all(port: int) -> list[socket.socket]:
        return [sock for _ in range(count) if (sock := opened(port)) is not None]

    async def attack(target: Target, seen: Seen) -> None:
        while True:
            socks = await asyncio.to_thread(open_all, target.port)
            try:
                while any(sock.fileno() >= 0 for sock in socks):
                    await asyncio.sleep(0.5)
                    for sock in socks:
                        if sock.fileno() >= 0 and (end := ended(sock)):
                            seen.told[end] += 1
                            sock.close()
            finally:
                for sock in socks:
                    sock.close()

    return attack


def ended(sock: socket.socket) -> str:
    """How a connection ended; empty if it has not."""
    try:
        begun = sock.recv(12, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return ""
    except OSError:
        return "reset"
    return begun[9:].decode() or "closed"


async def a_byte_now_and_then(writer: asyncio.StreamWriter, number: int) -> None:
    raw = head(100) + b"x" * 100
    writer.write(raw[: number % len(raw)])
    for at in range(number % len(raw), len(raw)):
        with contextlib.suppress(ConnectionError):
            writer.write(raw[at : at + 1])
        await asyncio.sleep(1)


def again_and_again(at_a_time: int, body: bytes, *lines: str) -> Attack:
    """The same request, so many at a time."""
    raw = head(len(body), *lines) + body

    async def one(target: Target, seen: Seen) -> None:
        while True:
            seen.told[await ask(target.port, raw)] += 1

    async def attack(target: Target, seen: Seen) -> None:
        await asyncio.gather(*(one(target, seen) for _ in range(at_a_time)))

    return attack


async def endless(target: Target, seen: Seen) -> None:
    piece = b"10000\r\n" + b"f" * 65536 + b"\r\n"

    async def send(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(head(None))
            while True:
                writer.write(piece)
                await writer.drain()

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
                sending = asyncio.create_task(send(writer))
                try:
                    seen.told[await told(reader)] += 1
                finally:
                    sending.cancel()
                    writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(8)))


async def unread(target: Target, seen: Seen) -> None:
    body = (
        b'{"stream":true,"max_tokens":4000,"ignore_eos":true,"logprobs":true,"top_logprobs":5,'
        + MEMBERS.replace(b'"max_tokens":1,', b"")
        + b"}"
    )
    loop = asyncio.get_running_loop()

    async def one() -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            await loop.sock_connect(sock, ("127.0.0.1", target.port))
            await loop.sock_sendall(sock, head(len(body)) + body)
            await asyncio.Event().wait()
        finally:
            sock.close()

    seen.told["opened"] += 4
    await asyncio.gather(*(one() for _ in range(4)))


async def nothing(target: Target, seen: Seen) -> None:
    await asyncio.Event().wait()


def attack_of(name: str, idle: int, slow: int) -> Attack:
    """One of them, by its name."""
    filler = b"f" * (16 * MIB - len(MEMBERS) - 20)
    text = b"some words of a long text that has no end, " * (16 * MIB // 43 - 10)
    asking = b'{"model":"m","max_tokens":1,"messages":['
    made: dict[str, Callable[[], Attack]] = {
        "idle": lambda: silent(idle),
        "slow": lambda: held(slow, a_byte_now_and_then),
        "bodies": lambda: again_and_again(4, b"{" + MEMBERS + b',"x_fill":"' + filler + b'"}'),
        "text": lambda: again_and_again(2, asking + b'{"role":"user","content":"' + text + b'"}]}'),
        "messages": lambda: again_and_again(2, asking + b",".join([b'{"role":"a"}'] * 1_000_000) + b"]}"),
        "members": lambda: again_and_again(2, b"{" + b'"x":0,' * 2_000_000 + MEMBERS + b"}"),
        "nesting": lambda: again_and_again(4, b"[" * (16 * MIB)),
        "gzip": lambda: again_and_again(8, gzip.compress(b"a" * (1024 * MIB), 1), "content-encoding: gzip"),
        "endless": lambda: endless,
        "unread": lambda: unread,
    }
    return made[name]() if name in made else nothing


NAMES = (
    "alone",
    "idle",
    "slow",
    "bodies",
    "text",
    "messages",
    "members",
    "nesting",
    "gzip",
    "endless",
    "unread",
    "after",
)


@asynccontextmanager
async def attacked(name: str, target: Target, seen: Seen, args: argparse.Namespace) -> AsyncIterator[None]:
    """Inside of it the attack goes on, from another process."""
    sizes = ("--idle", str(args.idle), "--slow", str(args.slow))
    command = (sys.executable, "-m", "benchmarks.hostile", "--attack", name, "--port", str(target.port), *sizes)
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()  # it is ready
    try:
        yield
    finally:
        process.terminate()
        said = await process.stdout.read()
        seen.told.update(json.loads(said or b"{}"))
        await process.wait()


async def attack_until_told(name: str, port: int, args: argparse.Namespace) -> None:
    """What the other process does."""
    attack = attack_of(name, args.idle, args.slow)
    seen = Seen()
    print("ready", flush=True)
    task = asyncio.ensure_future(attack(Target(0, port, 0), seen))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.gather(task, return_exceptions=True)
    print(json.dumps(seen.told), flush=True)


@contextmanager
def served(receive_seconds: float) -> Iterator[Target]:
    """An engine, and a gateway in front of it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine, port, admin_port = free_port(), free_port(), free_port()
        speed = ["--prefill-rate", "1e9", "--decode-ms", "2", "--slots", "256"]
        stack.enter_context(running("engine", "--port", str(engine), "--model", "m", *speed))
        config = {
            "server": {"port": port, "admin_port": admin_port, "receive_seconds": receive_seconds},
            "log": {"requests": False, "level": "warning"},
            "models": [{"id": "m", "tokenizer": "builtin:demo", "replicas": [f"http://127.0.0.1:{engine}"]}],
            "relay": {"chunk_timeout_seconds": 5},
        }
        file = folder / "gateway.yaml"
        file.write_text(json.dumps(config))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
        process = subprocess.Popen(command, start_new_session=True)
        try:
            wait_for(f"http://127.0.0.1:{engine}/health")
            wait_for(f"http://127.0.0.1:{port}/readyz")
            yield Target(process.pid, port, admin_port)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


async def measure(target: Target, args: argparse.Namespace) -> None:
    columns = ("median ms", "p99 ms", "max ms", "health ms", "asked", "errors", "MiB", "during", "after", "files")
    widths = " ".join(f"{column:>9}" for column in columns)
    print(f"{'':12} {widths} {'during':>6} {'after':>6}  told", flush=True)
    for name in args.only or NAMES:
        seen = Seen()
        memory, files = target.memory(), target.files()
        async with attacked(name, target, seen, args):
            await asyncio.sleep(2)  # until it is at its height
            most, opened = target.memory(), target.files()
            async with Normal(target, seen):
                end = time.monotonic() + args.seconds
                while time.monotonic() < end:
                    await asyncio.sleep(0.2)
                    most, opened = max(most, target.memory()), max(opened, target.files())
        await asyncio.sleep(args.receive_seconds + 3)
        times = [1000 * seconds for seconds in (seen.quantile(0.5), seen.quantile(0.99), seen.quantile(1), seen.health)]
        row = " ".join(f"{each:9.1f}" for each in times)
        sizes = " ".join(f"{each:9.0f}" for each in (memory, most, target.memory()))
        print(
            f"{name:12} {row} {len(seen.times):9} {seen.errors:9} {sizes} {files:9} {opened:6} {target.files():6} ",
            ", ".join(f"{count} {what}" for what, count in seen.told.most_common()),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=10_000, help="connections that say nothing")
    parser.add_argument("--slow", type=int, default=1000, help="requests that come byte by byte")
    parser.add_argument("--seconds", type=float, default=15, help="for which each attack is measured")
    parser.add_argument("--receive-seconds", type=float, default=10, help="the gateway's server.receive_seconds")
    parser.add_argument("--only", nargs="*", choices=NAMES, help="some of them")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    raise_open_files()
    if args.attack:
        asyncio.run(attack_until_told(args.attack, args.port, args))
        return
    with served(args.receive_seconds) as target:
        asyncio.run(measure(target, args))


if __name__ == "__main__":
    main()
