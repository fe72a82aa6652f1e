"""Blocks that are to be written."""

from collections.abc import Sequence

_ENTRY_BYTES = 200
"""Of an entry beside its key and its block."""


class PendingWrites:
    """Holds what is to be written, each key once; of too much, what came first is dropped.

    Args:
        max_bytes: What all may take.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[bytes, bytes | None] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: bytes, block: bytes | None) -> int:
        """Add one, in place of an earlier one of the same key.

        Args:
            key: Its key.
            block: What to write; None to keep for longer what is there.

        Returns:
            How many were dropped for it.
        """
        if block is None and key in self._entries:
            return 0
        self._take(key)
        self._entries[key] = block
        self._bytes += _size(key, block)
        dropped = 0
        while self._bytes > self._max_bytes:
            self._take(next(iter(self._entries)))
            dropped += 1
        return dropped

    def first(self, most: int) -> list[tuple[bytes, bytes | None]]:
        """Those that came first. They stay until they are done."""
        return [entry for entry, _ in zip(self._entries.items(), range(most), strict=False)]

    def done(self, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Some were written. One that was replaced meanwhile stays."""
        for key, block in entries:
            if key in self._entries and self._entries[key] is block:
                self._take(key)

    def _take(self, key: bytes) -> None:
        if key in self._entries:
            self._bytes -= _size(key, self._entries.pop(key))


def _size(key: bytes, block: bytes | None) -> int:
    return len(key) + len(block or b"") + _ENTRY_BYTES
