"""When the log's lines are written, and that none is lost."""

import asyncio
import json
import select
import subprocess
import sys
import threading

import pytest

from gateway.telemetry.logs import LogLines


class Writes:
    """A file that records what each write holds."""

    def __init__(self) -> None:
        self.made: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.made.append(data)

    def flush(self) -> None:
        pass


@pytest.fixture
def file() -> Writes:
    return Writes()


@pytest.fixture
def lines(file: Writes) -> LogLines:
    return LogLines(file)  # type: ignore[arg-type]


async def test_lines_of_one_iteration_are_one_write(file, lines):
    lines.info(b"a\n")
    lines.info(b"b\n")
    assert file.made == []
    await asyncio.sleep(0)
    lines.info(b"c\n")
    await asyncio.sleep(0)
    assert file.made == [b"a\nb\n", b"c\n"]


async def test_a_warning_is_written_at_once_after_the_lines_before_it(file, lines):
    lines.info(b"a\n")
    lines.warning(b"b\n")
    lines.info(b"c\n")
    assert b"".join(file.made) == b"a\nb\n"
    await asyncio.sleep(0)
    assert b"".join(file.made) == b"a\nb\nc\n"


async def test_a_line_of_another_thread_is_written_at_once_after_the_lines_before_it(file, lines):
    lines.info(b"a\n")
    thread = threading.Thread(target=lines.info, args=(b"b\n",))
    thread.start()
    thread.join()
    assert b"".join(file.made) == b"a\nb\n"


def test_without_an_event_loop_a_line_is_written_at_once(file, lines):
    lines.info(b"a\n")
    assert file.made == [b"a\n"]


async def test_a_write_of_several_lines_is_no_longer_than_a_pipe_takes_at_once(file, lines):
    line = b"x" * 999 + b"\n"
    for _ in range(10):
        lines.info(line)
    await asyncio.sleep(0)
    assert b"".join(file.made) == line * 10
    assert len(file.made) == 3
    assert all(len(data) <= select.PIPE_BUF for data in file.made)


async def test_a_file_that_cannot_be_written_fails_nothing(lines, file, monkeypatch):
    def refuse(_data: bytes) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(file, "write", refuse)
    lines.warning(b"a\n")
    lines.info(b"b\n")
    await asyncio.sleep(0)
    monkeypatch.undo()
    lines.warning(b"c\n")
    assert file.made == [b"c\n"]


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(
    "end",
    [
        "asyncio.get_running_loop().stop()",
        "raise RuntimeError",
        "sys.exit(3)",
        "end_process(0)",
    ],
)
def test_the_last_line_before_the_end_of_the_process_is_written(end, unbuffered):
    script = (
        "import asyncio, sys, structlog\n"
        "from gateway.server.forced_end import end_process\n"
        "from gateway.telemetry import configure_logs\n"
        "configure_logs('json', 'info')\n"
        "def last():\n"
        "    for number in range(20):\n"
        "        structlog.get_logger('x').info('counted', number=number)\n"
        f"    {end}\n"
        "async def main():\n"
        "    asyncio.get_running_loop().call_soon(last)\n"
        "    await asyncio.sleep(0.01)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, *(["-u"] if unbuffered else []), "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    found = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert [line["number"] for line in found if line["event"] == "counted"] == list(range(20))


def test_clients_without_a_key_cannot_fill_the_log():
    script = (
        "import structlog, time\n"
        "from gateway.telemetry import configure_logs\n"
        "now = 6000.0\n"
        "time.monotonic = lambda: now\n"
        "configure_logs('json', 'info')\n"
        "log = structlog.get_logger('x')\n"
        "for minute in range(2):\n"
        "    now += 60\n"
        "    for number in range(300):\n"
        "        log.info('request_refused', tenant=None)\n"
        "        log.info('connection_refused', code='bad_request')\n"
        "log.info('request_refused', tenant='acme')\n"
        "log.info('other')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    found = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["event"] for line in found].count("request_refused") == 101
    assert [line["event"] for line in found].count("connection_refused") == 100
    assert [line["left_out"] for line in found if "left_out" in line] == [0, 500]
    assert [line["event"] for line in found[-2:]] == ["request_refused", "other"]
