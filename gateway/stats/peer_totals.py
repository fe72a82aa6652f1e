"""Totals exchanged between gateways: encodes the sums of a journal, and decodes those of others to add them up."""

from collections.abc import Sequence

from gateway.stats.counters import Counters, SelectionTotals
from gateway.stats.history import FIGURES, HistoryInvalid, StoredSums, decoded, encoded, sender_of
from gateway.stats.query_arguments import Selection
from gateway.stats.time_buckets import WINDOWS


def encode_totals(counts: Counters, now: float, *, sender: bytes, since: float) -> bytes:
    """Encodes the totals of a journal for other gateways.

    Args:
        counts: The counters.
        now: Unix seconds.
        sender: Random id of this process.
        since: Start of the journal, Unix seconds.
    """
    windows = [(window.seconds, counts.sums(Selection(window), now).rows()) for window in WINDOWS.values()]
    return encoded(FIGURES, sender, since, windows)


class PeerTotals:
    """The totals of other gateways.

    Args:
        encoded: Their results of ``encode_totals``; None if they are unavailable.
        sender: Random id of this process, whose own totals are skipped.
    """

    def __init__(self, encoded: Sequence[bytes] | None, sender: bytes) -> None:
        self._missing = encoded is None
        self._totals: list[StoredSums] = []
        for data in encoded or ():
            try:
                if sender_of(data, FIGURES) != sender:
                    self._totals.append(decoded(data, FIGURES))
            except HistoryInvalid:  # of another release
                self._missing = True

    @property
    def since(self) -> float | None:
        """Start of the oldest of their journals; None without other gateways."""
        return min((totals.since for totals in self._totals), default=None)

    @property
    def shown(self) -> dict[str, object]:
        """Number of gateways included, and whether any is missing, JSON-ready."""
        return {"counted": 1 + len(self._totals), "missing": self._missing}

    def sums(self, selection: Selection) -> list[SelectionTotals]:
        """The sums of a selection, for each gateway."""
        return [
            SelectionTotals.of(
                {
                    key: row
                    for seconds, key, row in totals.rows()
                    if seconds == selection.window.seconds and selection.takes(*key)
                }
            )
            for totals in self._totals
        ]
