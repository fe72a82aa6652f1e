"""Patterns of personal data: the built-in kinds, and the operator's own patterns."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from gateway.canon.pii.kinds import card, email, iban, ipv4, national_id, phone
from gateway.canon.pii.kinds.text_view import Span, TextView
from gateway.config.operator_patterns import compiled

# Ordered from specific to general: overlapping findings are reported with the first kind.
_BUILT_IN: dict[str, Callable[[TextView], Iterator[Span]]] = {
    "iban": iban.find,
    "national_id": national_id.find,
    "card": card.find,
    "email": email.find,
    "ipv4": ipv4.find,
    "phone": phone.find,
}


class Hit(NamedTuple):
    """Personal data in a text: kind, offset of its first character, and length in characters."""

    kind: str
    start: int
    length: int


class Patterns:
    """Finds personal data in texts. Pure and thread-safe.

    Args:
        kinds: Built-in kinds to search for.
        own: Kind and regular expression of the operator's patterns, which ``compiled`` accepts.
    """

    def __init__(self, kinds: Collection[str], own: Sequence[tuple[str, str]] = ()) -> None:
        self._kinds = [(kind, find) for kind, find in _BUILT_IN.items() if kind in kinds]
        self._own = [(kind, compiled(regex)) for kind, regex in own]

    def find(self, text: str) -> tuple[Hit, ...]:
        """The findings in a text, sorted and disjoint.

        Overlapping findings are merged into one of the most specific kind; the operator's kinds are more specific than
        the built-in ones.

        Raises:
            TooSlow: one of the operator's patterns takes too long.
        """
        return tuple(_joined(self._spans(text)))

    def _spans(self, text: str) -> Iterator[tuple[int, int, int, str]]:
        """Start, end, rank (lower is more specific) and kind of all matches."""
        for rank, (kind, pattern) in enumerate(self._own):
            for found in pattern.find(text):
                if found.end > found.start:
                    yield found.start, found.end, rank, kind
        view = TextView(text)
        for rank, (kind, find) in enumerate(self._kinds, start=len(self._own)):
            for start, end in find(view):
                yield start, end, rank, kind


def _joined(spans: Iterable[tuple[int, int, int, str]]) -> Iterator[Hit]:
    current: tuple[int, int, int, str] | None = None
    for start, end, rank, kind in sorted(spans):
        if current is None or start >= current[1]:
            if current is not None:
                yield Hit(current[3], current[0], current[1] - current[0])
            current = (start, end, rank, kind)
        else:
            specific = min(current[2:], (rank, kind))
            current = (current[0], max(end, current[1]), *specific)
    if current is not None:
        yield Hit(current[3], current[0], current[1] - current[0])
