"""The send buffer to the explain worker, bounded in bytes.

A message is *held* from when it is added until the worker reports it as handled: first as a value, then as a sent
frame. Requests that do not fit are returned for their tokens to be counted, never silently dropped.
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
"""Size of a request without text and tokens, as a value."""
_HOLDER_BYTES = 150
_HELD_BYTES = 350
"""Size of the record of a sent message."""
_ENOUGH_BYTES = 128 * 1024
"""Bytes encoded in one batch; more would delay requests."""
_OBSERVED_PART = 4
"""Original prompts, from before rules changed them, are accepted while at most a quarter is held."""


class SentMessage(NamedTuple):
    """One message that was sent.

    Attributes:
        size: Bytes.
        share: Its tokens as a sum; None if it is not about a client's request.
        is_counted: Whether its missed tokens are counted already, because it is a sum.
        is_skipped: Whether it is already counted as skipped.
    """

    size: int
    share: SkippedTotals | None
    is_counted: bool
    is_skipped: bool


class SendBuffer:
    """Holds messages until they are handled.

    Args:
        max_bytes: Maximum bytes held.
        on_unsendable: Called with a message that cannot be encoded, and the error.
    """

    def __init__(self, max_bytes: int, on_unsendable: Callable[[SentMessage, Exception], None]) -> None:
        self.max_bytes = max_bytes
        self._on_unsendable = on_unsendable
        self._held = 0
        self._roomy = True
        self._unsent: deque[tuple[Work, int]] = deque()
        self._unsent_bytes = 0
        self._sent: deque[SentMessage] = deque()

    @property
    def unsent_bytes(self) -> int:
        """Bytes not sent yet."""
        return self._unsent_bytes

    @property
    def awaits(self) -> bool:
        """Whether a sent message is not handled yet."""
        return bool(self._sent)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self._sent and not self._unsent

    @property
    def is_roomy(self) -> bool:
        """Whether texts are accepted: until more than half is held, then again from a quarter on (hysteresis)."""
        if self._roomy:
            self._roomy = self._held <= self.max_bytes // 2
        else:
            self._roomy = self._held <= self.max_bytes // 4
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
        if asked and self._held > self.max_bytes // _OBSERVED_PART:
            # The original prompt, needed to observe rules, is dropped first.
            finished, asked = msgspec.structs.replace(finished, canonical=bare(finished.canonical)), 0
        text = asked + len(finished.body) + sum(map(len, finished.parts))
        for reply in finished.replies:
            text += len(reply.text or "") + len(reply.ids or b"")
        plain = _PLAIN_BYTES + _HOLDER_BYTES * len(finished.holders)
        if text and (not with_text or self._held + plain + text > self.max_bytes):
            finished, text = without_text(finished), 0
        if self._held + plain + text > self.max_bytes:
            return False, not finished.parts
        self.add(finished, plain + text)
        return True, not finished.parts

    def add(self, work: Work, size: int = _PLAIN_BYTES) -> None:
        """Hold a message regardless of the bound; for rare messages."""
        self._held += size
        self._unsent_bytes += size
        self._unsent.append((work, size))

    def add_first(self, work: Work, size: int = _PLAIN_BYTES) -> None:
        """As ``add``, before all unsent messages."""
        self._held += size
        self._unsent_bytes += size
        self._unsent.appendleft((work, size))

    def encoded(self) -> bytearray:
        """The frames to send next, about ``_ENOUGH_BYTES``; empty if there are none."""
        out = bytearray()
        while self._unsent and len(out) < _ENOUGH_BYTES:
            work, estimate = self._unsent.popleft()
            self._held -= estimate
            self._unsent_bytes -= estimate
            held = held_of(work)
            try:
                size = pack(work, out)
            except Exception as error:  # noqa: BLE001 - after any failure its tokens are counted
                self._on_unsendable(held, error)
                continue
            size += _HELD_BYTES
            self._held += size
            self._sent.append(held._replace(size=size))
        return out

    def done(self) -> SentMessage:
        """Release the oldest sent message, which the worker has handled."""
        held = self._sent.popleft()
        self._held -= held.size
        return held

    def give_up(self) -> list[SentMessage]:
        """Release and return all messages."""
        lost = [*self._sent, *(held_of(work) for work, _ in self._unsent)]
        self._sent.clear()
        self._unsent.clear()
        self._held = self._unsent_bytes = 0
        return lost


def without_text(finished: RequestRecord) -> RequestRecord:
    """A request without its prompt and replies."""
    return msgspec.structs.replace(finished, body=b"", parts=(), replies=(), canonical=bare(finished.canonical))


def bare(canonical: Canonicalized) -> Canonicalized:
    """Canonicalization data without what observing rules needs."""
    return Canonicalized(context_lost=canonical.context_lost)


def held_of(work: Work) -> SentMessage:
    """The record of a held message; ``size`` is set later."""
    match work:
        case RequestRecord():
            share = None if work.warming else share_of(work)
            return SentMessage(0, share, is_counted=False, is_skipped=not work.parts)
        case SkippedTotals():
            return SentMessage(0, work, is_counted=True, is_skipped=True)
        case CacheEvent() | PeerPrompts():
            return SentMessage(0, None, is_counted=True, is_skipped=True)
