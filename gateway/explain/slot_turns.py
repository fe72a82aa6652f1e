"""Whether a value that varies stays the same in a conversation: the turn after the one that found it tells."""

from collections import OrderedDict

import msgspec

from gateway.core.explanation import VaryingSlot
from gateway.explain.reference import ReferenceMatch

_KEPT = 2000


class SlotTurns:
    """The slots found in the latest requests, by the request."""

    def __init__(self) -> None:
        self._slots: OrderedDict[str, VaryingSlot] = OrderedDict()

    def take(self, request_id: str, found: ReferenceMatch | None, slot: VaryingSlot | None) -> VaryingSlot | None:
        """What is to be told of a request's slot.

        Args:
            request_id: The request's id.
            found: What it was compared with.
            slot: The slot that differs; None if none does.

        Returns:
            The slot; or, where none differs, that of the turn before, which has kept its value.
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
