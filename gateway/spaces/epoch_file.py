"""The file that lets the lives of spaces outlive the process."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

_VERSION = 1


class EpochFile:
    """Reads and writes the file. All of it blocks; call it from a thread.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> bool:
        """Take the file for this process; false if another one has it. It ends with the process.

        Raises:
            OSError: the lock's file, which stands beside, cannot be made.
        """
        fd = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._lock = fd
        return True

    def unlock(self) -> None:
        """Give it back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> dict[str, Any] | None:
        """What the last process left; None if there is no file yet.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not such a file.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        document = orjson.loads(content)
        if not isinstance(document, dict) or document.get("version") != _VERSION:
            raise ValueError(f"not a file of version {_VERSION}")
        return document

    def write(self, document: dict[str, Any]) -> None:
        """Replace the file. Once this returns, a crash of the machine leaves it as it is.

        Raises:
            OSError: it cannot be written; the old one is still there.
        """
        content = orjson.dumps({"version": _VERSION} | document)
        beside = self.path.with_name(f"{self.path.name}.new")
        with _private(beside) as fd:
            written = 0
            while written < len(content):
                written += os.write(fd, content[written:])
            os.fsync(fd)
        beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def set_aside(self) -> Path:
        """Move a file that cannot be used out of the way.

        Raises:
            OSError: it cannot be moved.
        """
        bad = self.path.with_name(f"{self.path.name}.bad")
        self.path.replace(bad)
        return bad


@contextlib.contextmanager
def _private(path: Path) -> Iterator[int]:
    """A new file that only this user can read: it holds the names of tenants."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)
