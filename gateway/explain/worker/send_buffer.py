"""What is on its way to the process that explains, bounded in bytes.

A request is *held* from when it is put in until the child says that it is done with it: first as a value, then in a
frame that was sent. What does not fit is handed out as a sum, never silently dropped.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gateway.core.canonical import Canonicalized
from gateway.core.explanation import CacheEvent, RequestRecord
from gateway.explain.worker.explain_messages import PeerPrompts, SkippedTotals, Work, pack
from gateway.explain.worker.skipped_totals import share_of

_PLAIN_BYTES = 1000
"""Of a request without text and tokens, as a value."""
_HOLDER_BYTES = 150
_HELD_BYTES = 350
"""Of what is remembered of a message that was sent."""
_ENOUGH_BYTES = 128 * 1024
"""Encoded in one go; more would keep requests waiting."""
_OBSERVED_PART = 4
"""Prompts as they were before rules changed them may come while a quarter is held."""


class SentMessage(NamedTuple):
    """One message that was sent.

    Attributes:
        size: Bytes.
        share: What it would be missing from sums; None if it has to do with no client's request.
        is_told: Whether that is counted already: it is a sum itself.
        is_skipped: Whether it is counted already that its text and tokens were left out.
    """

    size: int
    share: SkippedTotals | None
    is_told: bool
    is_skipped: bool


class SendBuffer:
    """Holds messages until they are done with.

    Args:
        most_bytes: How much may be held.
        on_unsendable: Called with what cannot be encoded, and why.
    """

    def __init__(self, most_bytes: int, on_unsendable: Callable[[SentMessage, Exception], None]) -> None:
        self.most_bytes = most_bytes
        self._on_unsendable = on_unsendable
        self._held = 0
        self._roomy = True
        self._unsent: deque[tuple[Work, int]] = deque()
        self._unsent_bytes = 0
        self._sent: deque[SentMessage] = deque()

    @property
    def unsent_bytes(self) -> int:
        """What of it is not yet sent."""
        return self._unsent_bytes

    @property
    def awaits(self) -> bool:
        """Whether anything was sent that the child is not done with."""
        return bool(self._sent)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self._sent and not self._unsent

    @property
    def is_roomy(self) -> bool:
        """Whether texts may come: from when a quarter is held at most until more than half is."""
        if self._roomy:
            self._roomy = self._held <= self.most_bytes // 2
        else:
            self._roomy = self._held <= self.most_bytes // 4
        return self._roomy

    def put(self, finished: RequestRecord, *, with_text: bool) -> tuple[bool, bool]:
        """Hold a request.

        Args:
            finished: The request.
            with_text: Whether its text and tokens may be held, too.

        Returns:
            Whether it is held, and whether it is without text and tokens.
        """
        asked = len(finished.canonical.asked)
        if asked and self._held > self.most_bytes // _OBSERVED_PART:
            # What rules bring is left out before anything else is.
            finished, asked = msgspec.structs.replace(finished, canonical=bare(finished.canonical)), 0
        text = asked + len(finished.body) + sum(map(len, finished.parts))
        for reply in finished.replies:
            text += len(reply.text or "") + len(reply.ids or b"")
        plain = _PLAIN_BYTES + _HOLDER_BYTES * len(finished.holders)
        if text and (not with_text or self._held + plain + text > self.most_bytes):
            finished, text = without_text(finished), 0
        if self._held + plain + text > self.most_bytes:
            return False, not finished.parts
        self.add(finished, plain + text)
        return True, not finished.parts

    def add(self, work: Work, size: int = _PLAIN_BYTES) -> None:
        """Hold something whether there is room or not: what is rare."""
        self._held += size
        self._unsent_bytes += size
        self._unsent.append((work, size))

    def add_first(self, work: Work, size: int = _PLAIN_BYTES) -> None:
        """As ``add``, in front of what is not yet sent."""
        self._held += size
        self._unsent_bytes += size
        self._unsent.appendleft((work, size))

    def encoded(self) -> bytearray:
        """The frames to send next, about as much as may be encoded in one go; empty if there is nothing."""
        out = bytearray()
        while self._unsent and len(out) < _ENOUGH_BYTES:
            work, estimate = self._unsent.popleft()
            self._held -= estimate
            self._unsent_bytes -= estimate
            held = held_of(work)
            try:
                size = pack(work, out)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it, its tokens count
                self._on_unsendable(held, error)
                continue
            size += _HELD_BYTES
            self._held += size
            self._sent.append(held._replace(size=size))
        return out

    def done(self) -> SentMessage:
        """The child is done with the next message."""
        held = self._sent.popleft()
        self._held -= held.size
        return held

    def give_up(self) -> list[SentMessage]:
        """Hold nothing any more; returns what was held."""
        lost = [*self._sent, *(held_of(work) for work, _ in self._unsent)]
        self._sent.clear()
        self._unsent.clear()
        self._held = self._unsent_bytes = 0
        return lost


def without_text(finished: RequestRecord) -> RequestRecord:
    """A request without all that would tell what its prompt was."""
    return msgspec.structs.replace(finished, body=b"", parts=(), replies=(), canonical=bare(finished.canonical))


def bare(canonical: Canonicalized) -> Canonicalized:
    """What is known of it where rules are not looked at."""
    return Canonicalized(context_lost=canonical.context_lost)


def held_of(work: Work) -> SentMessage:
    """What is remembered of a message while it is held; ``size`` is yet to be set."""
    match work:
        case RequestRecord():
            share = None if work.warming else share_of(work)
            return SentMessage(0, share, is_told=False, is_skipped=not work.parts)
        case SkippedTotals():
            return SentMessage(0, work, is_told=True, is_skipped=True)
        case CacheEvent() | PeerPrompts():
            return SentMessage(0, None, is_told=True, is_skipped=True)
