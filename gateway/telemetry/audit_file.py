"""Where audit lines end up: a file that is rotated by size, or standard output. Blocking; used by one thread.

A line is in the file as a whole or not at all: what a full disk cut off is taken back, or, where that cannot be, at
least does not run into the next line. A file that was moved or removed meanwhile (by hand, by logrotate) is begun anew.
"""

import contextlib
import itertools
import os
import stat
from collections import deque
from pathlib import Path
from typing import Protocol

_MODE = 0o640
"""Not for everybody on the machine to read."""
_STANDARD_OUTPUT = 1


class AuditTarget(Protocol):
    """Takes lines."""

    def write(self, lines: deque[bytes]) -> None:
        """Append lines, each with its line end, and remove them from ``lines`` as they are written.

        Raises:
            OSError: what is still in ``lines`` was not written.
        """
        ...

    def close(self) -> None:
        """Let go of it; the next ``write`` would open it again."""
        ...


class RotatedFile:
    """A file that becomes ``NAME.1`` (and that one ``NAME.2``) before it would grow beyond a size.

    If it cannot be renamed, it grows on, because a line too much is better than a line lost.

    Args:
        path: The file.
        max_bytes: The size.
        keep: How many renamed files there are at most; the oldest is overwritten.
    """

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._stream: _LineStream | None = None

    def write(self, lines: deque[bytes]) -> None:
        """See ``AuditTarget``. Besides, raises an ``OSError`` after all was written if the file cannot be renamed."""
        overdue: OSError | None = None
        try:
            while lines:
                stream = self._opened()
                size = stream.size() if overdue is None else None
                if size and size + len(lines[0]) > self._max_bytes:
                    try:
                        self._rotate()
                    except OSError as error:
                        overdue = error
                    continue
                stream.append(lines, len(lines) if size is None else _fitting(lines, self._max_bytes - size))
        except OSError:
            self.close()
            raise
        if overdue is not None:
            raise overdue

    def close(self) -> None:
        """See ``AuditTarget``."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _opened(self) -> "_LineStream":
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
        # Only up to the first number that is free: an attempt that failed half-way and is made again pushes nothing
        # over the end.
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
        """See ``AuditTarget``."""
        self._stream.append(lines, len(lines))

    def close(self) -> None:
        """See ``AuditTarget``. It stays open: it is not only ours."""


def open_for_append(path: Path) -> int:
    """A descriptor to append to a file, which is made if it is not there; a pipe or a device is never waited for.

    Raises:
        OSError: it cannot be opened.
    """
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _MODE)


class _LineStream:
    """An open descriptor that lines are appended to.

    Args:
        descriptor: It.
        torn: Whether what is there does not end with a line end.
    """

    def __init__(self, descriptor: int, *, torn: bool = False) -> None:
        self._descriptor = descriptor
        self._torn = torn

    def is_at(self, path: Path) -> bool:
        """Whether the path still leads to what is open."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), path.stat())
        except OSError:
            return False

    def size(self) -> int | None:
        """Bytes in the file; None if it is something else, such as a device."""
        found = os.fstat(self._descriptor)
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def append(self, lines: deque[bytes], count: int) -> None:
        """Write the first lines and remove them from ``lines``.

        Raises:
            OSError: not all could be written; those that could are removed.
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
                self._torn = done > whole and not self._take_back(done - whole)
            raise
        finally:
            for _ in range(count):
                lines.popleft()

    def close(self) -> None:
        """Close the descriptor."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def _take_back(self, tail: int) -> bool:
        """Cut off what was written last, if it is a file and nobody else has written since."""
        try:
            end = os.lseek(self._descriptor, 0, os.SEEK_CUR)
            found = os.fstat(self._descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size != end:
                return False
            os.ftruncate(self._descriptor, end - tail)
        except OSError:
            return False
        return True


def _fitting(lines: deque[bytes], room: int) -> int:
    """How many of the first lines fit; one at least, however long it is."""
    sums = itertools.accumulate(map(len, lines))
    return max(sum(1 for _ in itertools.takewhile(lambda total: total <= room, sums)), 1)


def _ends_inside_a_line(path: Path) -> bool:
    """Whether a process that wrote to it before died within a line."""
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False
