"""The file that keeps the epochs of spaces across restarts."""

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
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> bool:
        """Lock the file for this process; False if another process holds the lock, which ends with the process.

        Raises:
            OSError: the lock file, next to it, cannot be created.
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
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> dict[str, Any] | None:
        """The content of the file; None if there is no file yet.

        Raises:
            OSError: it cannot be read.
            ValueError: it has another format.
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
        new_file = self.path.with_name(f"{self.path.name}.new")
        with _private(new_file) as fd:
            written = 0
            while written < len(content):
                written += os.write(fd, content[written:])
            os.fsync(fd)
        new_file.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def set_aside(self) -> Path:
        """Rename a file that cannot be read.

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
