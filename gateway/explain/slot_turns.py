"""Tracks whether a varying value stays the same in a conversation, by comparing it with the next turn."""

from collections import OrderedDict

import msgspec

from gateway.core.explanation import VaryingSlot
from gateway.explain.reference import ReferenceMatch

_KEPT = 2000


class SlotTurns:
    """The slots found in the latest requests, by request id."""

    def __init__(self) -> None:
        self._slots: OrderedDict[str, VaryingSlot] = OrderedDict()

    def take(self, request_id: str, found: ReferenceMatch | None, slot: VaryingSlot | None) -> VaryingSlot | None:
        """The slot to report for a request.

        Args:
            request_id: The request's id.
            found: The request it was compared with.
            slot: The differing slot; None if none differs.

        Returns:
            The slot; if none differs, that of the previous turn, whose value was kept.
        """
        before = None
        if found is not None and found.same_conversation:
            before = self._slots.pop(found.reference.request_id, None)
        if slot is not None:
            if len(self._slots) >= _KEPT:
                self._slots.popitem(last=False)
            self._slots[request_id] = slot
            return slot
        return None if before is None else msgspec.structs.replace(before, is_kept=True)
