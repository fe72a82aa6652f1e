"""The send buffer to the explain worker, bounded in bytes.

A message is *held* from when it is added until the worker reports it as handled: first as a value, then as a sent
frame. Requests that do not fit are returned for their tokens to be counted, never silently dropped. What becomes a
reference to an earlier request is decided when it is encoded: for many requests in turn that takes a third of the time.

``SkippedSums`` holds the sums of requests that could not be explained, so that their tokens are included in all totals;
``GoneReplicas`` the cache events that still apply and must be sent to a new worker process.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from gateway.core.bounded_cache import BoundedCache
from gateway.core.canonical import Canonicalized
from gateway.core.experiment_group import ExperimentSample
from gateway.core.explanation import CacheEvent, CacheHistory, RequestRecord, SkippedTotals
from gateway.explain.worker.explain_messages import NamedComparison, PeerPrompts, RepeatedRequest, Work, encode
from gateway.explain.worker.repeats import Repeats
from gateway.stats.markers import Marker

_PLAIN_BYTES = 1000
"""Size of a request without text and tokens, as a value."""

_HOLDER_BYTES = 150

_HELD_BYTES = 350
"""Size of the record of a sent message."""

_BATCH_BYTES = 128 * 1024
_BATCH_MESSAGES = 16
"""What is encoded in one batch; more would delay requests."""

GATHER_BYTES = 1024 * 1024
"""Messages gather up to these bytes as values: most of a repeated request is not sent."""

_OBSERVED_PART = 4
"""Original prompts, from before rules changed them, are accepted while at most a quarter is held."""


class SentMessage(NamedTuple):
    """One message that was sent.

    Attributes:
        size: Bytes.
        totals: Its tokens as a sum; None if it is not about a client's request.
        is_counted: Whether its missed tokens are counted already, because it is a sum.
        is_skipped: Whether it is already counted as skipped.
    """

    size: int
    totals: SkippedTotals | None
    is_counted: bool
    is_skipped: bool


class SendBuffer:
    """Holds messages until they are handled.

    Args:
        max_bytes: Maximum bytes held.
        on_unsendable: Called with a message that cannot be encoded, and the error.

    Attributes:
        max_bytes: As given.
        unsent_bytes: Bytes not sent yet.
        repeats: What later requests can refer to.
    """

    def __init__(self, max_bytes: int, on_unsendable: Callable[[SentMessage, Exception], None]) -> None:
        self.max_bytes = max_bytes
        self.repeats = Repeats()
        self._on_unsendable = on_unsendable
        self._held = 0
        self._had_room = True
        self._unsent: deque[tuple[Work, int]] = deque()
        self.unsent_bytes = 0
        self._sent: deque[SentMessage] = deque()

    @property
    def awaits(self) -> bool:
        """Whether a sent message is not handled yet."""
        return bool(self._sent)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self._sent and not self._unsent

    def has_room(self) -> bool:
        """Whether texts are accepted: until more than half is held, then again from a quarter on (hysteresis)."""
        if self._had_room:
            self._had_room = self._held <= self.max_bytes // 2
        else:
            self._had_room = self._held <= self.max_bytes // 4
        return self._had_room

    def put(self, record: RequestRecord, *, with_text: bool) -> tuple[bool, bool]:
        """Hold a request.

        Args:
            record: The request.
            with_text: Whether its text and tokens may be held, too.

        Returns:
            Whether it is held, and whether it is without text and tokens.
        """
        asked = len(record.canonical.asked)
        if asked and self._held > self.max_bytes // _OBSERVED_PART:
            # The original prompt, needed to observe rules, is dropped first.
            record, asked = msgspec.structs.replace(record, canonical=_without_observation(record.canonical)), 0
        text = asked + len(record.body) + sum(map(len, record.parts))
        for reply in record.replies:
            text += len(reply.text or "") + len(reply.ids or b"")
        plain = _PLAIN_BYTES + _HOLDER_BYTES * len(record.holders)
        if text and (not with_text or self._held + plain + text > self.max_bytes):
            record, text = _without_text(record), 0
        if self._held + plain + text > self.max_bytes:
            return False, not record.parts
        self.add(record, plain + text)
        return True, not record.parts

    def add(self, work: Work, size: int = _PLAIN_BYTES) -> None:
        """Hold a message regardless of the bound; for rare messages."""
        self._held += size
        self.unsent_bytes += size
        self._unsent.append((work, size))

    def add_first(self, work: Work, size: int = _PLAIN_BYTES) -> None:
        """As ``add``, before all unsent messages."""
        self._held += size
        self.unsent_bytes += size
        self._unsent.appendleft((work, size))

    def encoded(self, *, all_gathered: bool = False) -> bytearray:
        """The frames of the next batch, or about ``GATHER_BYTES`` at once; empty if none wait."""
        out = bytearray()
        most, enough = (len(self._unsent), GATHER_BYTES) if all_gathered else (_BATCH_MESSAGES, _BATCH_BYTES)
        for _ in range(min(most, len(self._unsent))):
            if len(out) >= enough:
                break
            work, estimate = self._unsent.popleft()
            self._held -= estimate
            self.unsent_bytes -= estimate
            try:
                sent = self._encode(work, out)
            except Exception as error:  # noqa: BLE001 - after any failure its tokens are counted
                self._on_unsendable(sent_message(work), error)
                continue
            self._held += sent.size
            self._sent.append(sent)
        return out

    def done(self) -> SentMessage:
        """Release the oldest sent message, which the worker has handled."""
        held = self._sent.popleft()
        self._held -= held.size
        return held

    def give_up(self) -> list[SentMessage]:
        """Release and return all messages."""
        lost = [*self._sent, *(sent_message(work) for work, _ in self._unsent)]
        self._sent.clear()
        self._unsent.clear()
        self._held = self.unsent_bytes = 0
        self.repeats.forget()
        return lost

    def _encode(self, work: Work, out: bytearray) -> SentMessage:
        """Append the frame of a message, or of its reference to an earlier one."""
        if isinstance(work, RequestRecord):
            message, totals = self.repeats.sent(work)
            size = encode(message, out) + _HELD_BYTES
            return SentMessage(size, totals, is_counted=False, is_skipped=not work.parts)
        if isinstance(work, CacheEvent):
            self.repeats.forget()
        return sent_message(work, encode(work, out) + _HELD_BYTES)


def _without_text(record: RequestRecord) -> RequestRecord:
    """A request without its prompt and replies."""
    return msgspec.structs.replace(
        record, body=b"", parts=(), replies=(), canonical=_without_observation(record.canonical)
    )


def _without_observation(canonical: Canonicalized) -> Canonicalized:
    """Canonicalization data without what observing rules needs."""
    return Canonicalized(context_lost=canonical.context_lost, blocks=canonical.blocks)


def sent_message(work: Work, size: int = 0) -> SentMessage:
    """The record of a held message."""
    match work:
        case RequestRecord():
            totals = None if work.warming else SkippedTotals.of(work)
            return SentMessage(size, totals, is_counted=False, is_skipped=not work.parts)
        case SkippedTotals():
            return SentMessage(size, work, is_counted=True, is_skipped=True)
        case RepeatedRequest() | CacheEvent() | ExperimentSample() | Marker() | PeerPrompts() | NamedComparison():
            return SentMessage(size, None, is_counted=True, is_skipped=True)


_MAX_SUMS = 1000
_OTHER = "(other)"
_Key = tuple[str, str, str, str, str, str, bool]


class SkippedSums:
    """Sums per model, tenant, client family, template version and application.

    Client families and tenants are unbounded. Beyond the bound, new ones are added to ``(other)``; models, their
    template versions, applications and tenant labels are bounded by the configuration.

    Args:
        most: Number of sums from which on ``(other)`` is used.
    """

    def __init__(self, most: int = _MAX_SUMS) -> None:
        self._most = most
        self._sums: dict[_Key, SkippedTotals] = {}

    def __len__(self) -> int:
        return len(self._sums)

    def add(self, more: SkippedTotals) -> None:
        """Add one more sum."""
        key = _key(more)
        if key not in self._sums and len(self._sums) >= self._most:
            more = msgspec.structs.replace(more, tenant=_OTHER, source=_OTHER)
            key = _key(more)
        before = self._sums.get(key)
        self._sums[key] = more if before is None else _together(before, more)

    def take(self) -> list[SkippedTotals]:
        """Returns all sums and removes them."""
        taken, self._sums = list(self._sums.values()), {}
        return taken


def _key(totals: SkippedTotals) -> _Key:
    where = totals.model, totals.tenant, totals.tenant_label, totals.source, totals.template, totals.prompt
    return *where, totals.hits_confirmed


def _together(one: SkippedTotals, other: SkippedTotals) -> SkippedTotals:
    return msgspec.structs.replace(
        one,
        at=max(one.at, other.at),
        requests=one.requests + other.requests,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        hits=one.hits + other.hits,
        prefill_seconds=one.prefill_seconds + other.prefill_seconds,
        completion_tokens=one.completion_tokens + other.completion_tokens,
    )


_KEPT = 10_000
"""A bound is needed where pods get new names: every roll-out adds as many departed replicas."""


class GoneReplicas:
    """The replicas that have left."""

    def __init__(self) -> None:
        self._gone: BoundedCache[str, CacheEvent] = BoundedCache(_KEPT)

    def note(self, event: CacheEvent) -> None:
        """Record an event."""
        if event.what is CacheHistory.LEFT:
            self._gone.put(event.name, event)
        elif event.what is CacheHistory.RETURNED:
            self._gone.pop(event.name)

    def events(self) -> Sequence[CacheEvent]:
        """The events of replicas that have left and not returned."""
        return [event for _, event in self._gone.items()]
