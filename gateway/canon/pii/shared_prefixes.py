"""Decides whether a finding is in a shared prefix.

A finding is shared if prompts of several conversations have the same text up to its last character. The texts are
compared by hash. Prompts with the same prefix have the same finding, so only prefixes with findings are stored.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.core.bounded_cache import BoundedCache


@dataclass(frozen=True, slots=True)
class Conversation:
    """Identity of a conversation.

    Attributes:
        id: Hash of the session or of the prompt's beginning.
        length: Length in characters of a prompt without messages, whose next turn extends it; its id is the hash of
            the whole prompt. 0 for chats, whose id does not change.
        begins: Returns the hash of the first n characters of a prompt without messages.
    """

    id: int
    length: int = 0
    begins: Callable[[int], int] | None = None

    def continues(self, earlier: tuple[int, int]) -> bool:
        """Whether this is a later turn of a conversation with the given id and length."""
        known, length = earlier
        return self.begins is not None and 0 < length < self.length and self.begins(length) == known


_SHARED: list[tuple[int, int]] = []
"""Identity of a shared prefix, whose conversations are no longer needed."""


class SharedPrefixes:
    """Counts conversations by the beginning of their prompts, with LRU eviction.

    Args:
        shared_by: Number of conversations from which a prefix counts as shared.
        max_prefixes: Capacity. A prefix takes about 300 bytes, and until it is shared up to 130 more per conversation.
    """

    def __init__(self, shared_by: int, max_prefixes: int) -> None:
        self._shared_by = shared_by
        # Id and length of the conversations with a prefix; _SHARED once there are enough of them.
        self._conversations: BoundedCache[int, list[tuple[int, int]]] = BoundedCache(max_prefixes)

    def __len__(self) -> int:
        return len(self._conversations)

    def count(self, prefix: int, conversation: Conversation) -> bool:
        """Count a conversation whose prompt begins with a prefix (a hash). Returns whether the prefix is shared now."""
        known = self._conversations.get(prefix)
        if known is None:
            known = []
            self._conversations.put(prefix, known)
        if known is _SHARED:
            return True
        this = (conversation.id, conversation.length)
        if this in known:
            return False
        for position, earlier in enumerate(known):
            if conversation.continues(earlier):
                known[position] = this
                return False
        known.append(this)
        if len(known) < self._shared_by:
            return False
        self._conversations.put(prefix, _SHARED)
        return True
