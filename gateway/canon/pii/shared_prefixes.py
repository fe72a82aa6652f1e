"""Whether what was found stands in a shared prefix.

A part of a prompt is shared when prompts of several conversations begin with all the text up to its end. So it is the
text up to a finding's last character that is compared, by its hash, and nothing behind it: prompts that differ in the
very next character share the finding, prompts that differ anywhere before do not. Whoever begins with the same text has
the same finding, so that only what is found has to be kept, and not the prompts that have none.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conversation:
    """Whose prompt it is.

    Attributes:
        id: Hash of what tells the conversation.
        length: For a prompt without messages, whose next turn repeats it and goes on: its length in characters, the id
            being the hash of all of it. 0 for the others, whose id stays the same.
        begins: For such a prompt: hash of its first characters, so many.
    """

    id: int
    length: int = 0
    begins: Callable[[int], int] | None = None

    def continues(self, earlier: tuple[int, int]) -> bool:
        """Whether this is a later turn of an earlier conversation, given by id and length."""
        known, length = earlier
        return self.begins is not None and 0 < length < self.length and self.begins(length) == known


class SharedPrefixes:
    """Counts conversations by what their prompts begin with.

    Args:
        shared_by: Conversations that make a prefix a shared one.
        max_prefixes: Beginnings to keep; the one not seen for longest is forgotten. Each takes about 300 bytes, those
            not yet shared up to 130 more for each conversation.
    """

    def __init__(self, shared_by: int, max_prefixes: int) -> None:
        self._shared_by = shared_by
        self._max_prefixes = max_prefixes
        # None: shared. The conversations that made it so need not be kept.
        self._conversations: OrderedDict[int, list[tuple[int, int]] | None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._conversations)

    def count(self, prefix: int, conversation: Conversation) -> bool:
        """A conversation's prompt begins with a prefix, given by its hash. Returns whether it is shared now."""
        known = self._conversations.setdefault(prefix, [])
        self._conversations.move_to_end(prefix)
        if len(self._conversations) > self._max_prefixes:
            self._conversations.popitem(last=False)
        if known is None:
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
        self._conversations[prefix] = None
        return True
