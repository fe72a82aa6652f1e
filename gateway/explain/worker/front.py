"""The gateway's client of the explain worker: sends answered requests, counts the results, asks questions.

Everything here runs in the event loop and takes microseconds: requests go into a buffer, which is encoded and written a
few milliseconds later. Requests never wait for the worker, and never fail because it is lost.

Every missed token of every request is counted once: by the worker, which reports counts together with the number of
handled messages; or here, as ``unclassified``, if a request is not sent or is lost with the worker.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from gateway.config.explain_settings import ExplainSettings
from gateway.core.explanation import CacheEvent, RequestRecord
from gateway.core.ports import ExplainObserver
from gateway.core.reasons import Reason
from gateway.explain.worker.explain_messages import (
    CanonOptions,
    Counted,
    Notice,
    PeerPrompts,
    QuestionAnswer,
    RawMessage,
    ToChild,
    WorkerOptions,
    pack,
)
from gateway.explain.worker.explain_supervisor import ExplainSupervisor, ExplainTimeouts
from gateway.explain.worker.peer_figures import PeerFigures
from gateway.explain.worker.questions import OpenQuestions
from gateway.explain.worker.refusals import ExplainUnavailable, explain_off
from gateway.explain.worker.replicated_seen import ReplicatedSeen
from gateway.explain.worker.send_buffer import SendBuffer, SentMessage, held_of
from gateway.explain.worker.skipped_totals import SkippedSums
from gateway.explain.worker.standing_facts import GoneReplicas

COMMAND = (sys.executable, "-m", "gateway.explain.worker.process")
SHARED_COMMAND = (sys.executable, "-m", "gateway.explain.worker.sessions")
"""With ``door``."""

_GATHER_SECONDS = 0.005
_GATHER_BYTES = 64 * 1024
_MIB = 1024 * 1024

_log = structlog.get_logger("gateway.explain.worker")


class ExplainClient:
    """``Explains`` and ``ExplainDesk``, backed by the worker process. Built inside a running event loop.

    Args:
        settings: The settings.
        observer: Receives the counts.
        gpus: GPUs per replica, by model; 1 by default.
        canon: Rules to observe; None observes none.
        command: Command of the worker; the descriptor number of the connection is appended.
        at: Socket of a worker shared by several gateways and started by another process; then none is started.
        door: Descriptor of a listening socket, to start a worker that other gateways can connect to.
        tells: Whether computed prompts are reported to other gateways.
        hears: Whether prompts reported by other gateways are passed on. Of several gateways with one worker, one does.
        patience: Timeouts.

    Attributes:
        past: Exchange of computed prompts with other gateways.
        hears: As given.
        others: Totals of other gateways; None without others.
    """

    def __init__(
        self,
        settings: ExplainSettings,
        observer: ExplainObserver,
        gpus: Mapping[str, float],
        canon: CanonOptions | None = None,
        *,
        command: Sequence[str] = COMMAND,
        at: Path | None = None,
        door: int | None = None,
        tells: bool = False,
        hears: bool = True,
        patience: ExplainTimeouts = ExplainTimeouts(),  # noqa: B008 - frozen
    ) -> None:
        self._enabled = settings.enabled
        self._terms = _terms(settings, gpus, canon, tells=tells)
        self._observer = observer
        self._farewell_seconds = patience.farewell_seconds
        self._keeper = ExplainSupervisor(command if at is None else at, patience, self, door)
        self._questions = OpenQuestions(patience.answer_seconds)
        self._outbox = SendBuffer(self._terms.max_waiting_bytes, self._cannot_send)
        self._skipped = SkippedSums()
        self.hears = hears
        self.others: PeerFigures | None = None
        self.past = ReplicatedSeen(self._take_peer_prompts)
        self._gone_replicas = GoneReplicas()
        self._there = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._progress = asyncio.Event()

    def start(self) -> None:
        """Start the process, in the background. Does nothing where explanations are turned off."""
        if self._enabled:
            # Messages are buffered until it runs.
            self._there = True
            self._keeper.start()

    async def stop(self) -> None:
        """Wait for outstanding counts, for a second at most, and end the process."""
        await self._keeper.stop()
        self._give_up()

    async def configure(
        self, settings: ExplainSettings, gpus: Mapping[str, float], canon: CanonOptions | None = None
    ) -> None:
        """Apply other settings. The process keeps its state, unless explanations are turned on or off."""
        before, self._terms = self._terms, _terms(settings, gpus, canon, tells=self._terms.tells)
        self._outbox.max_bytes = self._terms.max_waiting_bytes
        if settings.enabled != self._enabled:
            self._enabled = settings.enabled
            await self.stop()
            self.start()
        elif self._terms != before and self._keeper.child is not None:
            self._send(self._terms)
            # With other bounds the worker may start with empty state.
            for event in self._gone_replicas.events():
                self._outbox.add(event)
            self._flush()

    @property
    def wants_text(self) -> bool:
        """See ``Explains``."""
        return self._there and self._outbox.is_roomy

    def finished(self, finished: RequestRecord) -> None:
        """See ``Explains``."""
        if not self._enabled:
            return
        try:
            self._take(finished)
        except Exception as error:  # noqa: BLE001 - must never fail a request
            _log.error("explain_failed", step="handing over", error=type(error).__name__)

    def happened(self, event: CacheEvent) -> None:
        """See ``Explains``."""
        self._gone_replicas.note(event)
        # Without a process the event is irrelevant: a new process starts with empty state.
        if self._enabled and self._there:
            self._outbox.add(event)
            self._flush_later()

    async def ask(self, question: str, arguments: Mapping[str, str]) -> bytes:
        """See ``ExplainDesk``."""
        if not self._enabled:
            raise explain_off()
        if not self._there:
            raise ExplainUnavailable("The process that explains requests is being started again; see explain_lost.")
        others: tuple[bytes, ...] | None = ()
        if question == "summary" and arguments.get("gateways") and self.others is not None:
            others = await self.others.read()
        return await self._questions.ask(question, arguments, self._send, others)

    # ``ExplainHost``.

    @property
    def awaits_sign(self) -> bool:
        """See ``ExplainHost``."""
        return self._outbox.awaits or bool(self._questions.open)

    def on_started(self) -> None:
        """See ``ExplainHost``."""
        self._there = True
        self._send(self._terms)
        for event in reversed(self._gone_replicas.events()):
            self._outbox.add_first(event)
        self._hand_over_skipped()
        self._flush()
        for question in self._questions.open:
            self._send(question)

    def on_frame(self, frame: RawMessage) -> None:
        """See ``ExplainHost``."""
        match message := frame.message():
            case Counted():
                self._count(message)
            case QuestionAnswer():
                self._questions.answered(message)
            case Notice():
                _log.error(message.event, **message.fields)
            case _:
                pass

    def on_lost(self) -> None:
        """See ``ExplainHost``."""
        self._give_up()
        self._questions.refuse_all("The process that explains requests was lost; it is being started again.")

    async def say_farewell(self) -> None:
        """See ``ExplainHost``: waits for outstanding counts, within a timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._farewell_seconds):
                while not self._outbox.is_empty:
                    self._flush()
                    self._progress.clear()
                    await self._progress.wait()

    def _give_up(self) -> None:
        self._there = False
        self._cancel_flush()
        for held in self._outbox.give_up():
            self._skip(held)

    # Sending.

    def _take(self, finished: RequestRecord) -> None:
        held, is_plain = self._outbox.put(finished, with_text=self._there)
        if not held:
            self._skip(held_of(finished)._replace(is_skipped=False))
            return
        if is_plain and not finished.warming:
            self._observer.on_explain_skipped(1)
        if self._outbox.unsent_bytes >= _GATHER_BYTES:
            self._flush()
        else:
            self._flush_later()

    def _take_peer_prompts(self, messages: tuple[bytes, ...]) -> None:
        """Pass on prompts computed for another gateway; dropped while the buffer is full."""
        if self.hears and self._enabled and self._there and self._outbox.is_roomy:
            self._outbox.add(PeerPrompts(time.time(), messages), sum(map(len, messages)))
            self._flush_later()

    def _flush_later(self) -> None:
        if self._flush_timer is None and self._keeper.child is not None:
            self._flush_timer = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._flush)

    def _cancel_flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def _flush(self) -> None:
        self._cancel_flush()
        child = self._keeper.child
        if child is not None and (frames := self._outbox.encoded()):
            child.write(frames)
            if self._outbox.unsent_bytes:
                self._flush_later()

    def _send(self, message: ToChild) -> None:
        """Send a message that is not held, after all held ones."""
        self._flush()
        if (child := self._keeper.child) is not None:
            frame = bytearray()
            pack(message, frame)
            child.write(frame)

    def _cannot_send(self, held: SentMessage, error: Exception) -> None:
        _log.error("explain_failed", step="encoding", error=type(error).__name__)
        self._skip(held)

    # Counting.

    def _count(self, counted: Counted) -> None:
        unread = set(counted.unread)
        for number in range(counted.handled):
            held = self._outbox.done()
            if number in unread:
                self._skip(held)
        for model, tenant_label, reason, tokens in counted.missed:
            self._observer.on_missed(model, tenant_label, reason, tokens)
        for rule, mode, edits, saved, lost in counted.canonical:
            self._observer.on_canonical(rule, mode, edits, saved, lost)
        if counted.seen:
            self.past.add(counted.seen)
        self._progress.set()
        if self._skipped and self._outbox.is_roomy:
            self._hand_over_skipped()
            self._flush_later()

    def _skip(self, held: SentMessage) -> None:
        """Count the tokens of a request, or of a sum of requests, that is not explained."""
        share = held.share
        if share is None:
            return
        if not held.is_counted:
            missed = share.prompt_tokens - share.hits
            if missed:
                self._observer.on_missed(share.model, share.tenant_label, Reason.UNCLASSIFIED, missed)
            if not held.is_skipped:
                self._observer.on_explain_skipped(share.requests)
        self._skipped.add(share)

    def _hand_over_skipped(self) -> None:
        for share in self._skipped.take():
            self._outbox.add(share)


def _terms(
    settings: ExplainSettings, gpus: Mapping[str, float], canon: CanonOptions | None, *, tells: bool
) -> WorkerOptions:
    return WorkerOptions(
        max_waiting_bytes=settings.max_waiting_mib * _MIB,
        journal_requests=settings.journal_requests,
        journal_ttl_seconds=settings.journal_ttl_seconds,
        reference_bytes=settings.reference_mib * _MIB,
        reference_ttl_seconds=settings.reference_ttl_seconds,
        seen_blocks=settings.seen_blocks,
        gpu_hour_price=settings.gpu_hour_price,
        currency=settings.currency,
        gpus=dict(gpus),
        canon=canon,
        tells=tells,
    )
