"""The demo and a simulated engine are reachable from this machine only, unless an operator says otherwise."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

import pytest
from patience import HANG_SECONDS

LISTENING = "0A"
EVENTS = ("--events", "tcp://*:0", "--replay", "tcp://*:0")


@contextmanager
def started(folder: Path, pattern: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A command, once it has printed something; gives what it printed."""
    printed = folder / "printed"
    with printed.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    try:
        end = time.monotonic() + HANG_SECONDS
        while not re.search(pattern, printed.read_text()):
            assert process.poll() is None, printed.read_text()
            assert time.monotonic() < end, printed.read_text()
            time.sleep(0.05)
        yield process, printed.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(HANG_SECONDS)


def family_of(pid: int) -> list[int]:
    """A process and everything that it has started."""
    found = [pid]
    for each in found:
        for task in Path(f"/proc/{each}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def listening(pid: int) -> list[tuple[IPv4Address | IPv6Address, int]]:
    """Addresses and ports that a process or one of its children listens at."""
    sockets = set()
    for each in family_of(pid):
        for descriptor in Path(f"/proc/{each}/fd").iterdir():
            try:
                target = descriptor.readlink().name
            except OSError:
                continue  # closed meanwhile
            if target.startswith("socket:["):
                sockets.add(target[len("socket:[") : -1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_rest = line.split()
            if state == LISTENING and _rest[5] in sockets:
                host, port = local.split(":")
                found.append((address(host), int(port, 16)))
    return found


def address(text: str) -> IPv4Address | IPv6Address:
    """As /proc/net has it: 32-bit words in the machine's order."""
    words = [int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8)]
    return IPv4Address(words[0]) if len(words) == 1 else IPv6Address(b"".join(words))


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_demo_listens_on_loopback_only(tmp_path):
    with started(tmp_path, r"admin +http", "demo", "--port", "0", "--admin-port", "0") as (process, _):
        found = listening(process.pid)
    # Two gateways with two ports each, six engines with one for HTTP, one for events and one for replays.
    assert len(found) >= 2 * 2 + 6 * 3
    assert [each for each in found if not each[0].is_loopback] == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("options", [(), EVENTS, (*EVENTS, "--host", "localhost", "--data-parallel-size", "2")])
def test_engine_listens_on_loopback_only(tmp_path, options):
    with started(tmp_path, r"simulated engine", "engine", "--port", "0", *options) as (process, printed):
        found = listening(process.pid)
    assert len(found) == 1 + printed.count("tcp://*:")
    assert [each for each in found if not each[0].is_loopback] == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_engine_that_is_opened_publishes_there_too(tmp_path):
    options = ("engine", "--port", "0", "--host", "0.0.0.0", *EVENTS)
    with started(tmp_path, r"simulated engine", *options) as (process, _):
        found = listening(process.pid)
    assert len(found) == 3
    assert all(each[0].is_unspecified for each in found)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_gateway_listens_on_loopback_unless_configured(tmp_path):
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "server: {port: 0, admin_port: 0, drain_seconds: 0}\n"
        "models: [{id: m, tokenizer: 'builtin:demo', replicas: ['http://127.0.0.1:9']}]\n"
    )
    with started(tmp_path, r"gateway_ready", "serve", "--config", str(config)) as (process, _):
        found = listening(process.pid)
    assert len(found) == 2
    assert all(each[0].is_loopback for each in found)
