"""Log files as lines: plain, gzip or zstd, recognized by their first bytes; ``-`` is standard input.

Lines are bounded: of a longer one only the length is kept.
"""

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, cast

import zstandard

from gateway.evaluation.bad_input import BadInput

MAX_LINE_BYTES = 32 * 1024 * 1024
"""Longest line that is read: the default limit of a request body is the same."""

_BUFFER_BYTES = 1024 * 1024
_PACKED_BYTES = 4096
"""Bytes that are unpacked at once: in the worst case 128 MiB come out of them."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHER_TYPES = {
    b"PK\x03\x04": "a zip archive (unpack it)",
    b"BZh": "a bzip2 file (unpack it)",
    b"\xfd7zXZ\x00": "an xz file (unpack it)",
    b"PAR1": "a Parquet file (export it as JSON lines)",
    b"%PDF": "a PDF file",
    b"\x89PNG": "an image",
    b"SQLite format 3": "an SQLite database",
    b"\x7fELF": "a program",
}
_LOOKED_AT_BYTES = 4096


class LogLine(NamedTuple):
    """A line of a log.

    Attributes:
        number: From 1.
        text: Its bytes without the line end; empty if it is too long.
        is_too_long: Whether it is longer than ``MAX_LINE_BYTES``.
    """

    number: int
    text: bytes
    is_too_long: bool


class _Counted(io.RawIOBase):
    """A file whose read bytes are counted."""

    def __init__(self, source: BinaryIO, start: bytes) -> None:
        self._source = source
        self._start = start
        self.bytes = 0

    def readable(self) -> bool:
        """See ``RawIOBase``."""
        return True

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        """See ``RawIOBase``."""
        if self._start:
            data, self._start = self._start[: len(buffer)], self._start[len(buffer) :]
        else:
            data = self._source.read(len(buffer))
        buffer[: len(data)] = data
        self.bytes += len(data)
        return len(data)


class _ZstdFrames(io.RawIOBase):
    """The content of zstd frames. The library's own reader takes the end of an incomplete frame for its end."""

    def __init__(self, packed: BinaryIO | io.BufferedReader) -> None:
        self._packed = packed
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._rest = b""
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        """See ``RawIOBase``."""
        return True

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        """See ``RawIOBase``."""
        while not self._unpacked:
            data = self._rest or self._packed.read(_PACKED_BYTES)
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._unpacked = memoryview(self._frame.decompress(data))
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._unpacked))
        buffer[:size] = self._unpacked[:size]
        self._unpacked = self._unpacked[size:]
        return size


class LogFile(AbstractContextManager["LogFile"]):
    """One log file.

    Args:
        path: Its path, or ``-``.

    Attributes:
        name: Its name, for messages.
        size: Its bytes as they are stored; 0 if unknown.
        changed_at: When it was last written, Unix seconds; None if unknown.

    Raises:
        BadInput: It cannot be opened, is empty, or is of another type.
    """

    def __init__(self, path: str) -> None:
        self.name = "standard input" if path == "-" else path
        self.size = 0
        self.changed_at: float | None = None
        try:
            if path == "-":
                self._source: BinaryIO = sys.stdin.buffer
            else:
                status = Path(path).stat()
                self.size, self.changed_at = status.st_size, status.st_mtime
                self._source = cast(BinaryIO, Path(path).open("rb", buffering=0))  # noqa: SIM115 - closed by close()
            start = self._source.read(_LOOKED_AT_BYTES) or b""
        except OSError as error:
            raise BadInput(f"{self.name}: cannot be read: {error.strerror or error}") from None
        self._counted = _Counted(self._source, start)
        try:
            self._lines = self._unpacked(start)
        except BaseException:
            self.close()
            raise
        self._number = 0

    @property
    def read_bytes(self) -> int:
        """Bytes read so far, as they are stored."""
        return self._counted.bytes

    def peek(self, size: int) -> bytes:
        """The next bytes, without reading on; at most a buffer's.

        Raises:
            BadInput: The compressed data is damaged.
        """
        try:
            return self._lines.peek(size)[:size]
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise self._damaged(error) from None

    def lines(self) -> Iterator[LogLine]:
        """The lines that are left, blank ones left out.

        Raises:
            BadInput: The compressed data is damaged.
        """
        while True:
            try:
                text = self._lines.readline(MAX_LINE_BYTES + 1)
                self._number += 1
                is_too_long = len(text) > MAX_LINE_BYTES
                while is_too_long and text and not text.endswith(b"\n"):
                    text = self._lines.readline(_BUFFER_BYTES)
            except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
                raise self._damaged(error) from None
            if not text and not is_too_long:
                return
            if is_too_long or not text.isspace():
                yield LogLine(self._number, b"" if is_too_long else text.rstrip(b"\r\n"), is_too_long)

    def document(self, most: int) -> bytes:
        """All that is left, for formats that are one document.

        Raises:
            BadInput: It is longer than ``most`` bytes, or the compressed data is damaged.
        """
        try:
            data = self._lines.read(most + 1)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise self._damaged(error) from None
        if len(data) > most:
            raise BadInput(f"{self.name}: a single JSON document of more than {most:,} bytes: export it in parts")
        return data

    def close(self) -> None:
        """Close the file."""
        if self._source is not sys.stdin.buffer:
            self._source.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def __enter__(self) -> Self:
        """The file itself."""
        return self

    def _unpacked(self, start: bytes) -> "io.BufferedReader[Any]":
        if not start:
            raise BadInput(f"{self.name}: empty; expected recorded requests, one a line")
        raw: io.BufferedReader[Any] = io.BufferedReader(self._counted, _BUFFER_BYTES)
        if start.startswith(_GZIP):
            return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw, mode="rb")), _BUFFER_BYTES)
        if start.startswith(_ZSTD):
            return io.BufferedReader(_ZstdFrames(raw), _BUFFER_BYTES)
        for magic, kind in _OTHER_TYPES.items():
            if start.startswith(magic):
                raise BadInput(f"{self.name}: {kind}; expected text, plain or packed with gzip or zstd")
        if b"\0" in start:
            raise BadInput(f"{self.name}: a binary file; expected text, plain or packed with gzip or zstd")
        return raw

    def _damaged(self, error: Exception) -> BadInput:
        reason = str(error)[:100] or type(error).__name__
        return BadInput(f"{self.name}: cannot be unpacked to its end ({reason}): the file is damaged or incomplete")
