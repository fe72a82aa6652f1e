"""Targets of the audit log: a file rotated by size, or standard output. Blocking; used by one thread.

A line is written completely or not at all: a line cut off by a full disk is truncated, or, where that fails, ended with
a line end. A file that was moved or removed meanwhile (manually or by logrotate) is created again.
"""

import contextlib
import itertools
import os
import stat
from collections import deque
from pathlib import Path

_MODE = 0o640
"""Not readable by other users of the machine."""
_STANDARD_OUTPUT = 1


class RotatedFile:
    """A file that is renamed to ``NAME.1`` (and that one to ``NAME.2``) before it exceeds a size.

    If it cannot be renamed, it grows further, so that no lines are lost.

    Args:
        path: The file.
        max_bytes: Maximum size.
        keep: Maximum number of renamed files; the oldest is overwritten.
    """

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._stream: _LineStream | None = None

    def write(self, lines: deque[bytes]) -> None:
        """Append lines, each with its line end, and remove them from ``lines`` as they are written.

        Raises:
            OSError: the lines still in ``lines`` were not written, or, if none are, the file cannot be renamed.
        """
        overdue: OSError | None = None
        try:
            while lines:
                stream = self._current_stream()
                size = stream.size() if overdue is None else None
                if size and size + len(lines[0]) > self._max_bytes:
                    try:
                        self._rotate()
                    except OSError as error:
                        overdue = error
                    continue
                stream.append(lines, len(lines) if size is None else _count_fitting(lines, self._max_bytes - size))
        except OSError:
            self.close()
            raise
        if overdue is not None:
            raise overdue

    def close(self) -> None:
        """Close the file; the next ``write`` opens it again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _current_stream(self) -> "_LineStream":
        if self._stream is not None and not self._stream.is_at(self._path):
            self.close()
        if self._stream is None:
            self._stream = _LineStream(open_for_append(self._path), torn=_ends_inside_a_line(self._path))
        return self._stream

    def _rotate(self) -> None:
        self.close()
        if not self._keep:
            self._path.unlink()
            return
        # Rename only up to the first unused number, so that a retry after a partial failure overwrites nothing.
        free = next((number for number in range(1, self._keep) if not self._old(number).exists()), self._keep)
        for number in range(free, 1, -1):
            self._old(number - 1).replace(self._old(number))
        self._path.replace(self._old(1))

    def _old(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class StandardOutput:
    """The process's standard output."""

    def __init__(self) -> None:
        self._stream = _LineStream(_STANDARD_OUTPUT)

    def write(self, lines: deque[bytes]) -> None:
        """As ``RotatedFile.write``."""
        self._stream.append(lines, len(lines))

    def close(self) -> None:
        """Does nothing: it stays open, because other parts of the process write to it, too."""


def open_for_append(path: Path) -> int:
    """A descriptor for appending to a file, which is created if missing; does not block on pipes and devices.

    Raises:
        OSError: the file cannot be opened.
    """
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)


class _LineStream:
    """Appends lines to an open descriptor.

    Args:
        descriptor: The descriptor.
        torn: Whether the existing content lacks a final line end.
    """

    def __init__(self, descriptor: int, *, torn: bool = False) -> None:
        self._descriptor = descriptor
        self._torn = torn

    def is_at(self, path: Path) -> bool:
        """Whether the path still refers to the open file."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), path.stat())
        except OSError:
            return False

    def size(self) -> int | None:
        """Size of the file in bytes; None if it is not a regular file."""
        found = os.fstat(self._descriptor)
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def append(self, lines: deque[bytes], count: int) -> None:
        """Write the first lines and remove them from ``lines``.

        Raises:
            OSError: not all lines were written; the written ones are removed.
        """
        lead = b"\n" if self._torn else b""
        data = lead + b"".join(itertools.islice(lines, count))
        done = 0
        try:
            while done < len(data):
                done += os.write(self._descriptor, data[done:] if done else data)
            self._torn = False
        except OSError:
            whole = data.rfind(b"\n", 0, done) + 1
            count = data.count(b"\n", len(lead), whole)
            if done:
                self._torn = done > whole and not self._truncate(done - whole)
            raise
        finally:
            for _ in range(count):
                lines.popleft()

    def close(self) -> None:
        """Close the descriptor."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def _truncate(self, tail: int) -> bool:
        """Truncate the last bytes, if it is a regular file and no other process has written since."""
        try:
            end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            found = os.fstat(self._descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size != end:
                return False
            os.ftruncate(self._descriptor, end - tail)
        except OSError:
            return False
        return True


def _count_fitting(lines: deque[bytes], free_bytes: int) -> int:
    """Number of the first lines that fit; at least one."""
    sums = itertools.accumulate(map(len, lines))
    return max(sum(1 for _ in itertools.takewhile(lambda total: total <= free_bytes, sums)), 1)


def _ends_inside_a_line(path: Path) -> bool:
    """Whether the file ends within a line, because a previous process crashed."""
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False
