"""The gateway's end of the explanation: hands over what was answered, counts what comes back, asks questions.

Everything here runs in the event loop and takes microseconds: requests are put into a buffer, which is encoded and
written a few milliseconds later. What the process at the other end does, or whether it is there at all, no request
ever notices.

Every missed token of every request is counted once: by the other process, which says what it counted together with
how many messages it is done with; or here, as ``unclassified``, if a request does not get there or is lost with it.
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
from gateway.explain.worker.standing_facts import StandingFacts

COMMAND = (sys.executable, "-m", "gateway.explain.worker.process")
SHARED_COMMAND = (sys.executable, "-m", "gateway.explain.worker.sessions")
"""With ``door``."""

_GATHER_SECONDS = 0.005
_GATHER_BYTES = 64 * 1024
_MIB = 1024 * 1024

_log = structlog.get_logger("gateway.explain.worker")


class ExplainClient:
    """``Explains`` and ``ExplainDesk``, by a process beside the gateway. Built inside of a running event loop.

    Args:
        settings: The settings.
        observer: Is told what was counted.
        gpus: GPUs of a replica, by model; 1 where it is not said.
        canon: For telling what canonicalization saves; None: that is not worked out.
        command: What to start; the number of the file descriptor of the connection is appended.
        at: Where a process listens that somebody else started, for several gateways together; then none is started.
        door: To start one for several gateways: the descriptor of the listening socket at which they are to connect.
        tells: Whether other gateways are told what was computed for this one.
        hears: Whether what these tell is handed on. Of several gateways with one process, one does.
        patience: How long things may take.

    Attributes:
        past: What was computed for this gateway and others, as gateways tell each other.
        hears: Whether what these tell is handed on.
        others: Where the figures of other gateways are; None for nowhere.
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
        self._left_out = SkippedSums()
        self.hears = hears
        self.others: PeerFigures | None = None
        self.past = ReplicatedSeen(self._hear)
        self._standing = StandingFacts()
        self._there = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._progress = asyncio.Event()

    def start(self) -> None:
        """Start the process, in the background. Does nothing where explanations are turned off."""
        if self._enabled:
            # What comes before it runs waits for it.
            self._there = True
            self._keeper.start()

    async def stop(self) -> None:
        """Have what waits counted, for a second at most, and end the process. Nothing is left of it afterwards."""
        await self._keeper.stop()
        self._give_up()

    async def configure(
        self, settings: ExplainSettings, gpus: Mapping[str, float], canon: CanonOptions | None = None
    ) -> None:
        """Go by other settings from now on. The process goes on with what it knows, unless it is turned on or off."""
        before, self._terms = self._terms, _terms(settings, gpus, canon, tells=self._terms.tells)
        self._outbox.most_bytes = self._terms.max_waiting_bytes
        if settings.enabled != self._enabled:
            self._enabled = settings.enabled
            await self.stop()
            self.start()
        elif self._terms != before and self._keeper.child is not None:
            self._send(self._terms)
            # Other bounds may mean to begin anew.
            for event in self._standing.events():
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
        except Exception as error:  # noqa: BLE001 - never in a request's way
            _log.error("explain_failed", step="handing over", error=type(error).__name__)

    def happened(self, event: CacheEvent) -> None:
        """See ``Explains``."""
        self._standing.note(event)
        # What happens before there is another process happens to no tokens that it knows of.
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

    # As ``Host`` of the process.

    @property
    def awaits_sign(self) -> bool:
        """See ``Host``."""
        return self._outbox.awaits or bool(self._questions.open)

    def on_started(self) -> None:
        """See ``Host``."""
        self._there = True
        self._send(self._terms)
        for event in reversed(self._standing.events()):
            self._outbox.add_first(event)
        self._hand_over_left_out()
        self._flush()
        for question in self._questions.open:
            self._send(question)

    def on_frame(self, frame: RawMessage) -> None:
        """See ``Host``."""
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
        """See ``Host``."""
        self._give_up()
        self._questions.refuse_all("The process that explains requests was lost; it is being started again.")

    async def say_farewell(self) -> None:
        """See ``Host``: what is held is still counted, if that is quick."""
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
            self._leave_out(held)

    # Handing over.

    def _take(self, finished: RequestRecord) -> None:
        held, is_plain = self._outbox.put(finished, with_text=self._there)
        if not held:
            self._leave_out(held_of(finished)._replace(is_skipped=False))
            return
        if is_plain and not finished.warming:
            self._observer.on_explain_skipped(1)
        if self._outbox.unsent_bytes >= _GATHER_BYTES:
            self._flush()
        else:
            self._flush_later()

    def _hear(self, told: tuple[bytes, ...]) -> None:
        """Another gateway tells what was computed for it; left out while there is too much to explain."""
        if self.hears and self._enabled and self._there and self._outbox.is_roomy:
            self._outbox.add(PeerPrompts(time.time(), told), sum(map(len, told)))
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
        """Send something that is not held, behind what is."""
        self._flush()
        if (child := self._keeper.child) is not None:
            frame = bytearray()
            pack(message, frame)
            child.write(frame)

    def _cannot_send(self, held: SentMessage, error: Exception) -> None:
        _log.error("explain_failed", step="encoding", error=type(error).__name__)
        self._leave_out(held)

    # Counting.

    def _count(self, counted: Counted) -> None:
        unread = set(counted.unread)
        for number in range(counted.handled):
            held = self._outbox.done()
            if number in unread:
                self._leave_out(held)
        for model, tenant_label, reason, tokens in counted.missed:
            self._observer.on_missed(model, tenant_label, reason, tokens)
        for rule, mode, edits, saved, lost in counted.canonical:
            self._observer.on_canonical(rule, mode, edits, saved, lost)
        if counted.told:
            self.past.add(counted.told)
        self._progress.set()
        if self._left_out and self._outbox.is_roomy:
            self._hand_over_left_out()
            self._flush_later()

    def _leave_out(self, held: SentMessage) -> None:
        """A request, or the sum of several, is not looked at; its tokens are counted all the same."""
        share = held.share
        if share is None:
            return
        if not held.is_told:
            missed = share.prompt_tokens - share.hits
            if missed:
                self._observer.on_missed(share.model, share.tenant_label, Reason.UNCLASSIFIED, missed)
            if not held.is_skipped:
                self._observer.on_explain_skipped(share.requests)
        self._left_out.add(share)

    def _hand_over_left_out(self) -> None:
        for share in self._left_out.take():
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
