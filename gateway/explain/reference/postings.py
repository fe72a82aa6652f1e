"""Which requests stand under a key."""

from itertools import islice

POSTING_BYTES = 190
"""Of one number under one key, about: most keys hold one, the others a dict of many."""


class Postings:
    """Numbers by key, each key's in the order they came. A number alone under its key is held without a container."""

    def __init__(self) -> None:
        self._held: dict[int, int | dict[int, None]] = {}

    def add(self, key: int, number: int) -> None:
        """Put a number last under a key."""
        held = self._held.get(key)
        if held is None:
            self._held[key] = number
        elif isinstance(held, dict):
            held[number] = None
        elif held != number:
            self._held[key] = {held: None, number: None}

    def discard(self, key: int, number: int) -> None:
        """Take a number from a key; without effect if it is not there."""
        held = self._held.get(key)
        if isinstance(held, dict):
            held.pop(number, None)
            if not held:
                del self._held[key]
        elif held == number:
            del self._held[key]

    def latest(self, key: int, count: int) -> list[int]:
        """The last ``count`` numbers under a key, the latest first."""
        held = self._held.get(key)
        if held is None:
            return []
        return list(islice(reversed(held), count)) if isinstance(held, dict) else [held]

    def __contains__(self, key: int) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)
