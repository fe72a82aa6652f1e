"""The audit log's file: rotation, and what becomes of lines when the disk fails."""

import asyncio
import errno
import os
import shutil
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_SECONDS
from records import lines_of

from gateway.config.telemetry_settings import AuditSettings
from gateway.telemetry.audit import AuditWriter
from gateway.telemetry.audit_file import RotatedFile


def line(number: int, length: int = 20) -> bytes:
    text = b'{"n":%d,"x":"' % number
    return text + b"x" * (length - len(text) - 3) + b'"}\n'


def numbers(*files: Path) -> list[int]:
    return [entry["n"] for entry in lines_of(*files)]


def old(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "audit.jsonl"


@pytest.fixture(autouse=True)
def folder(file: Path) -> Path:
    file.parent.mkdir()
    return file.parent


@pytest.fixture
def full_disk(monkeypatch):
    """A disk with space for so many bytes more; None for enough."""
    space: list[int | None] = [None]
    write = os.write

    def limited(descriptor: int, data: bytes) -> int:
        if space[0] is None:
            return write(descriptor, data)
        if not space[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = write(descriptor, bytes(data)[: space[0]])
        space[0] -= taken
        return taken

    monkeypatch.setattr("gateway.telemetry.audit_file.os.write", limited)

    def set_free(free: int | None) -> None:
        space[0] = free

    return set_free


# Rotation


def test_a_full_file_is_renamed_and_the_oldest_is_let_go(file):
    target = RotatedFile(file, max_bytes=50, keep=2)
    for number in range(10):
        target.write(deque([line(number)]))
    assert numbers(old(file, 2), old(file, 1), file) == [4, 5, 6, 7, 8, 9]
    assert not old(file, 3).exists()
    assert file.stat().st_size <= 50


def test_one_batch_fills_several_files(file):
    target = RotatedFile(file, max_bytes=50, keep=9)
    lines = deque(line(number) for number in range(7))
    target.write(lines)
    assert not lines
    assert numbers(old(file, 3), old(file, 2), old(file, 1), file) == list(range(7))
    assert [len(numbers(each)) for each in (old(file, 3), old(file, 2), old(file, 1), file)] == [2, 2, 2, 1]


def test_a_file_may_be_filled_to_its_last_byte(file):
    RotatedFile(file, max_bytes=40, keep=1).write(deque([line(0), line(1)]))
    assert numbers(file) == [0, 1]


def test_a_line_longer_than_a_file_has_one_for_itself(file):
    target = RotatedFile(file, max_bytes=50, keep=9)
    target.write(deque([line(0), line(1, 500), line(2)]))
    assert numbers(old(file, 2), old(file, 1), file) == [0, 1, 2]
    assert numbers(old(file, 1)) == [1]


def test_with_none_to_keep_a_full_file_is_deleted(file):
    target = RotatedFile(file, max_bytes=50, keep=0)
    target.write(deque(line(number) for number in range(5)))
    assert numbers(file) == [4]
    assert os.listdir(file.parent) == [file.name]


def test_a_file_that_is_there_goes_on_growing_and_counts(file):
    RotatedFile(file, max_bytes=50, keep=3).write(deque([line(0)]))
    target = RotatedFile(file, max_bytes=50, keep=3)
    target.write(deque([line(1)]))
    target.write(deque([line(2)]))
    assert numbers(old(file, 1)) == [0, 1]
    assert numbers(file) == [2]


def test_a_line_that_a_crash_cut_off_does_not_run_into_the_next(file):
    file.write_bytes(line(0) + b'{"n":1,"x"')
    RotatedFile(file, max_bytes=1000, keep=3).write(deque([line(2)]))
    assert file.read_bytes() == line(0) + b'{"n":1,"x"\n' + line(2)


def test_a_file_moved_away_meanwhile_is_begun_anew(file):
    target = RotatedFile(file, max_bytes=1000, keep=3)
    target.write(deque([line(0)]))
    file.rename(file.with_name("taken"))
    target.write(deque([line(1)]))
    assert numbers(file.with_name("taken")) == [0]
    assert numbers(file) == [1]


def test_a_file_that_cannot_be_renamed_grows_on_and_is_complained_about(file, monkeypatch):
    target = RotatedFile(file, max_bytes=50, keep=3)
    target.write(deque([line(0), line(1)]))

    def denied(*_: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", denied)
        lines = deque([line(2), line(3), line(4)])
        with pytest.raises(PermissionError):
            target.write(lines)
        assert not lines
    assert numbers(file) == [0, 1, 2, 3, 4]
    target.write(deque([line(5)]))
    assert numbers(old(file, 1), file) == [0, 1, 2, 3, 4, 5]


def test_renaming_that_failed_half_way_pushes_nothing_over_the_end(file, monkeypatch):
    target = RotatedFile(file, max_bytes=20, keep=4)
    for number in range(4):
        target.write(deque([line(number)]))
    assert numbers(old(file, 3), old(file, 2), old(file, 1), file) == [0, 1, 2, 3]
    replace = Path.replace

    def all_but_the_file(path: Path, other: Path) -> Path:
        if path == file:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return replace(path, other)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", all_but_the_file)
        for number in range(4, 9):
            with pytest.raises(PermissionError):
                target.write(deque([line(number)]))
    target.write(deque([line(9)]))
    kept = sorted(file.parent.glob("audit.jsonl.*"), reverse=True)
    assert numbers(*kept, file) == list(range(10))


# Full and missing disks


def test_what_a_full_disk_cut_off_is_taken_back_and_written_whole_later(file, full_disk):
    target = RotatedFile(file, max_bytes=1000, keep=3)
    lines = deque(line(number) for number in range(4))
    full_disk(45)
    with pytest.raises(OSError, match="No space left"):
        target.write(lines)
    assert numbers(file) == [0, 1]
    full_disk(None)
    target.write(lines)
    assert numbers(file) == [0, 1, 2, 3]


def test_a_cut_off_line_that_cannot_be_taken_back_stays_on_a_line_of_its_own(file, full_disk, monkeypatch):
    def denied(*_: Any) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("gateway.telemetry.audit_file.os.ftruncate", denied)
    target = RotatedFile(file, max_bytes=1000, keep=3)
    lines = deque([line(0), line(1)])
    full_disk(30)
    with pytest.raises(OSError, match="No space left"):
        target.write(lines)
    full_disk(None)
    target.write(lines)
    assert file.read_bytes() == line(0) + line(1)[:10] + b"\n" + line(1)


class AuditSetup:
    """A writer, and what it complained of."""

    def __init__(self, file: Path, **options: Any) -> None:
        self.errors = 0
        self.file = file
        target = RotatedFile(file, max_bytes=1_000_000, keep=3)
        self.writer = AuditWriter(target, self._count, retry_seconds=0.02, **options)

    def _count(self) -> None:
        self.errors += 1

    def put(self, *given: int) -> None:
        for number in given:
            self.writer.put("step", {"n": number})

    def written(self) -> list[int]:
        entries = lines_of(self.file) if self.file.exists() else []
        return [entry.get("n", -entry.get("lines", 0)) for entry in entries]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def setup(file):
    made: list[AuditSetup] = []

    def make(**options: Any) -> AuditSetup:
        made.append(AuditSetup(file, **options))
        return made[-1]

    yield make
    for each in made:
        await each.writer.stop()


async def test_lines_wait_out_a_full_disk_in_order(setup, full_disk, capsys):
    w = setup()
    full_disk(0)
    w.writer.start()
    w.put(1, 2)
    await until(lambda: w.errors >= 3)
    w.put(3)
    full_disk(None)
    await until(lambda: w.written() == [1, 2, 3])
    w.put(4)
    await until(lambda: w.written() == [1, 2, 3, 4])


async def test_an_outage_is_one_line_in_the_log_and_its_end_another(setup, full_disk, capsys):
    w = setup()
    w.writer.start()
    for _ in range(2):
        full_disk(0)
        before = w.errors
        w.put(*range(100))
        await until(lambda before=before: w.errors >= before + 3)
        full_disk(None)
        await until(lambda: not w.writer._failing)
    reported = capsys.readouterr().out
    assert reported.count("audit_failing") == 2
    assert reported.count("audit_recovered") == 2
    assert "No space left on device" in reported


async def test_what_did_not_fit_is_counted_where_it_is_missing(setup, full_disk):
    w = setup(max_lines=3)
    full_disk(0)
    w.writer.start()
    w.put(1, 2, 3, 4, 5)
    await until(lambda: w.errors >= 2)
    w.put(6)
    full_disk(None)
    await until(lambda: w.written() == [1, 2, 3, -3])
    w.put(7)
    await until(lambda: w.written() == [1, 2, 3, -3, 7])
    gap = lines_of(w.file)[3]
    assert gap["event"] == "audit_gap"
    assert lines_of(w.file)[2]["time"] <= gap["since"] <= gap["time"]


async def test_lines_behind_a_gap_stand_behind_it(setup):
    w = setup(max_lines=2)
    w.put(1, 2, 3)
    w.writer._waiting.popleft()  # as if the thread had just taken one away
    w.put(4)
    w.writer.start()
    await until(lambda: w.written() == [2, -1, 4])


async def test_lines_of_clients_leave_room_for_those_of_operators(setup):
    w = setup(max_lines=2)
    w.put(1, 2, 3, 4)
    w.writer.put("step", {"n": 5}, reserved=True)
    w.put(6)
    w.writer.start()
    await until(lambda: w.written() == [1, 2, -2, 5, -1])


async def test_losing_lines_counts_as_an_error_even_if_nothing_fails(setup):
    w = setup(max_lines=1)
    w.put(1, 2, 3)
    assert w.errors == 1


@pytest.mark.parametrize("away", [lambda f: f.unlink(), lambda f: shutil.rmtree(f.parent), lambda f: f.rename(f"{f}x")])
async def test_a_file_or_folder_that_goes_and_comes_back_costs_nothing(setup, file, away):
    w = setup()
    w.writer.start()
    w.put(1)
    await until(lambda: w.written() == [1])
    away(file)
    w.put(2)
    if not file.parent.exists():
        await until(lambda: w.errors > 0)
        file.parent.mkdir()
    await until(lambda: w.written() == [2])


async def test_a_folder_without_permission_is_an_outage(setup, file, monkeypatch):
    real = os.open

    def denied(path: Any, *rest: Any) -> int:
        if str(path) == str(file):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *rest)

    w = setup()
    with monkeypatch.context() as patched:
        patched.setattr("gateway.telemetry.audit_file.os.open", denied)
        w.writer.start()
        w.put(1)
        await until(lambda: w.errors >= 2)
    await until(lambda: w.written() == [1])


async def test_a_device_that_is_always_full_delays_no_request(capsys):
    errors: list[None] = []
    writer = AuditWriter(RotatedFile(Path("/dev/full"), 1000, 3), lambda: errors.append(None), retry_seconds=0.02)
    writer.start()
    writer.put("step", {})
    await until(lambda: len(errors) >= 2)
    await writer.stop()
    reported = capsys.readouterr().out
    assert reported.count("audit_failing") == 1
    assert "audit_lost" in reported


async def test_even_an_error_of_another_kind_does_not_end_it(setup, monkeypatch):
    w = setup()
    with monkeypatch.context() as patched:
        patched.setattr(RotatedFile, "_current_stream", lambda _: 1 / 0)
        w.writer.start()
        w.put(1)
        await until(lambda: w.errors >= 2)
    await until(lambda: w.written() == [1])


async def test_stopping_writes_what_waits(setup):
    w = setup()
    w.writer.start()
    w.put(*range(1000))
    await w.writer.stop()
    assert w.written() == list(range(1000))


async def test_stopping_without_starting_is_possible(setup):
    await setup().writer.stop()


def test_defaults_hold_what_the_settings_promise():
    settings = AuditSettings()
    assert (settings.file, settings.max_bytes, settings.keep, settings.requests) == (None, 104857600, 10, True)
