"""The file that lets the lives of spaces outlive the process."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

_VERSION = 1


class SpacesFile:
    """Reads and writes the file. All of it blocks; call it from a thread.

    Args:
        path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

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
