"""What was worked out lately."""

from collections.abc import Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class RecentCache(Generic[_Key, _Value]):
    """Values by key, bounded in bytes. What was not asked for while half of the room was filled is forgotten."""

    def __init__(self, max_bytes: int) -> None:
        self._half_bytes = max_bytes // 2
        self._recent: dict[_Key, tuple[_Value, int]] = {}
        self._recent_bytes = 0
        self._older: dict[_Key, tuple[_Value, int]] = {}

    def get(self, key: _Key) -> _Value | None:
        """The value; None if it is not remembered."""
        held = self._recent.get(key)
        if held is None:
            held = self._older.get(key)
            if held is None:
                return None
            self.put(key, *held)
        return held[0]

    def put(self, key: _Key, value: _Value, size: int) -> None:
        """Remember a value of ``size`` bytes."""
        if self._recent_bytes + size > self._half_bytes:
            self._older, self._recent, self._recent_bytes = self._recent, {}, 0
        if size <= self._half_bytes:
            self._recent[key] = (value, size)
            self._recent_bytes += size
