"""Replicas and Redis that do not answer: unreachable, unresolvable, frozen, half-open."""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import redis_server
from serving import COMMAND

HANG_SECONDS = 600

_HANGING_LOOKUPS = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>
typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {{
    lookup *real = dlsym(RTLD_NEXT, "getaddrinfo");
    int numeric = hints && (hints->ai_flags & AI_NUMERICHOST);
    if (name && strstr(name, ".hangs") && !numeric) sleep({HANG_SECONDS});
    return real(name, service, hints, found);
}}
"""


class Silent:
    """Peers of a gateway that do not answer.

    Attributes:
        replicas: Replicas for its configuration.
        redis: URL of a Redis.
        environment: What its process needs.
    """

    def __init__(self) -> None:
        self.replicas: list[object] = []
        self.redis = ""
        self.environment: dict[str, str] = {}

    def freeze(self) -> None:
        """Stop answering, if that is not so from the beginning."""


@contextlib.contextmanager
def unreachable(_folder: Path) -> Iterator[Silent]:
    """Their hosts drop what is sent there: their backlogs are full, so connecting takes for ever."""
    with contextlib.ExitStack() as stack:
        silent = Silent()
        ports = []
        for _ in range(3):
            listening = stack.enter_context(socket.socket())
            listening.bind(("127.0.0.1", 0))
            listening.listen(0)
            for _ in range(4):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(listening.getsockname())
            ports.append(listening.getsockname()[1])
        _use(silent, *ports)
        yield silent


@contextlib.contextmanager
def half_open(_folder: Path) -> Iterator[Silent]:
    """They take connections and never say anything."""
    with contextlib.ExitStack() as stack:
        silent = Silent()
        listening = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in listening:
            each.bind(("127.0.0.1", 0))
            each.listen(1000)
        _use(silent, *(each.getsockname()[1] for each in listening))
        yield silent


@contextlib.contextmanager
def unresolvable(folder: Path) -> Iterator[Silent]:
    """The name server does not answer."""
    silent = Silent()
    silent.replicas = [{"url": f"http://r{n}.hangs:80", "events": f"tcp://r{n}.hangs:5557"} for n in range(6)]
    silent.redis = "redis://redis.hangs"
    compiler = shutil.which("cc")
    if compiler is not None:
        (folder / "hanging.c").write_text(_HANGING_LOOKUPS)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", "hanging.so", "hanging.c", "-ldl"], cwd=folder, check=True, timeout=60
        )
        silent.environment["LD_PRELOAD"] = str(folder / "hanging.so")
    else:  # only what Python itself looks up
        hook = "import socket, time\nreal = socket.getaddrinfo\ndef hanging(host, *more, **named):\n"
        hook += f"    if host and '.hangs' in str(host) and not (more[4:] or [0])[0] & 4: time.sleep({HANG_SECONDS})\n"
        (folder / "sitecustomize.py").write_text(
            hook + "    return real(host, *more, **named)\nsocket.getaddrinfo = hanging\n"
        )
        silent.environment["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
    yield silent


@contextlib.contextmanager
def frozen(folder: Path) -> Iterator[Silent]:
    """They answer, until they are stopped in the middle of what they do."""
    redis = redis_server.RedisServer(folder)
    redis.start()
    engines = [
        subprocess.Popen(
            [*COMMAND, "engine", "--port", "0", "--decode-ms", "50"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(2)
    ]

    class Frozen(Silent):
        def freeze(self) -> None:
            redis.hang()
            for engine in engines:
                engine.send_signal(signal.SIGSTOP)

    try:
        silent = Frozen()
        silent.redis = redis.url
        for engine in engines:
            assert engine.stdout is not None
            while not (found := re.search(rb"http://[\d.:]+", engine.stdout.readline())):
                assert engine.poll() is None
            silent.replicas.append(found[0].decode())
        yield silent
    finally:
        for engine in engines:
            engine.kill()
            engine.wait(30)
        redis.wake()
        redis.kill()


def _use(silent: Silent, *ports: int) -> None:
    silent.replicas = [{"url": f"http://127.0.0.1:{port}", "events": f"tcp://127.0.0.1:{port}"} for port in ports[:-1]]
    silent.redis = f"redis://127.0.0.1:{ports[-1]}"


KINDS = {"unreachable": unreachable, "unresolvable": unresolvable, "frozen": frozen, "half-open": half_open}


async def settle() -> None:
    """Let lookups and connections begin."""
    await asyncio.sleep(1.5)
