"""The gateway's client of the explain worker: sends answered requests, counts the results, asks questions.

Everything here runs in the event loop and takes microseconds: requests go into a buffer, which is encoded and written
some milliseconds later, many at once: a wake-up for each of them would cost more than all of the rest. Requests never
wait for the worker, and never fail because it is lost.

Every missed token of every request is counted once: by the worker, which reports counts together with the number of
handled messages; or here, as ``unclassified``, if a request is not sent or is lost with the worker.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from gateway.config.telemetry_settings import ExplainSettings
from gateway.core.client_places import ClientPlaces
from gateway.core.diagnosis import UNAVAILABLE, PromptDiagnosis
from gateway.core.errors import BadRequest, GatewayError, NotFound
from gateway.core.experiment_group import ExperimentSample
from gateway.core.explanation import CacheEvent, RequestRecord
from gateway.core.ports import ExplainObserver
from gateway.core.reasons import Reason
from gateway.explain.worker.cpu_share import CpuShare
from gateway.explain.worker.explain_messages import (
    CanonOptions,
    NamedComparison,
    Notice,
    PeerPrompts,
    Question,
    QuestionAnswer,
    RawMessage,
    Ready,
    StoredHistory,
    ToWorker,
    WorkerOptions,
    WorkReport,
    encode,
)
from gateway.explain.worker.explain_replication import PeerFigures, ReplicatedSeen
from gateway.explain.worker.explain_supervisor import ExplainSupervisor, ExplainTimeouts
from gateway.explain.worker.history_keeper import HistoryKeeper
from gateway.explain.worker.send_buffer import (
    GATHER_BYTES,
    GoneReplicas,
    SendBuffer,
    SentMessage,
    SkippedSums,
    sent_message,
)
from gateway.stats.markers import Marker, MarkerKind
from gateway.stats.prices import TokenPrices

COMMAND = (sys.executable, "-m", "gateway.explain.worker.process")
_GATHER_SECONDS = 0.05
_BETWEEN_BATCHES_SECONDS = 0.005
"""Pause behind a full batch, for the requests in the gateway's event loop, if more is waiting."""

_DIAGNOSE_SECONDS = 0.05
"""A request waits so long for its comparison with an earlier one."""

_SAMPLE_BYTES = 400
"""Size of an experiment's sample in the send buffer."""
_MIB = 1024 * 1024
_log = structlog.get_logger("gateway.explain.worker")


class ExplainClient:
    """Explains requests in the worker process, and asks it questions. Built inside a running event loop.

    Args:
        settings: The settings.
        observer: Receives the counts.
        gpus: GPUs per replica, by model; 1 by default.
        canon: Rules to observe; None observes none.
        experiment: As in ``WorkerOptions``.
        token_prices: Likewise.
        command: Command of the worker; the descriptor number of the connection is appended.
        socket_path: Socket of a worker shared by several gateways and started by another process; then none is started.
        listen_fd: Descriptor of a listening socket, to start a worker that other gateways can connect to.
        publishes_seen: Whether computed prompts are reported to other gateways.
        receives_seen: Whether prompts reported by other gateways are passed on. Of several gateways with one worker,
            one does.
        timeouts: Timeouts.

    Attributes:
        enabled: Whether requests are explained; if not, records are ignored.
        replicated_seen: Exchange of computed prompts with other gateways.
        receives_seen: As given.
        peer_figures: Totals of other gateways; None without others.
        history_keeper: Keeps the worker's history; None if it is not kept.
    """

    def __init__(
        self,
        settings: ExplainSettings,
        observer: ExplainObserver,
        gpus: Mapping[str, float],
        canon: CanonOptions | None = None,
        *,
        experiment: Mapping[str, float | str] | None = None,
        token_prices: Mapping[str, TokenPrices] | None = None,
        command: Sequence[str] = COMMAND,
        socket_path: Path | None = None,
        listen_fd: int | None = None,
        publishes_seen: bool = False,
        receives_seen: bool = True,
        timeouts: ExplainTimeouts = ExplainTimeouts(),  # noqa: B008 - frozen
    ) -> None:
        self.enabled = settings.enabled
        self._options = _worker_options(settings, gpus, canon, experiment, token_prices, publishes_seen=publishes_seen)
        self._observer = observer
        self._drain_seconds = timeouts.drain_seconds
        self._supervisor = ExplainSupervisor(command if socket_path is None else socket_path, timeouts, self, listen_fd)
        self._questions = OpenQuestions()
        self._answer_seconds = timeouts.answer_seconds
        self._send_buffer = SendBuffer(self._options.max_waiting_bytes, self._cannot_send)
        self._skipped = SkippedSums()
        self._cpu_share = CpuShare(settings.max_cpu_share)
        self.receives_seen = receives_seen
        self.peer_figures: PeerFigures | None = None
        self.replicated_seen = ReplicatedSeen(self._take_peer_prompts)
        self._gone_replicas = GoneReplicas()
        self._stored: list[bytes] = []
        self.history_keeper: HistoryKeeper | None = None
        self._is_running = False
        # Whether the process has its options, which have to be the first message: it is there before.
        self._has_options = False
        self._flush_timer: asyncio.TimerHandle | None = None
        self._progress = asyncio.Event()

    def start(self) -> None:
        """Start the process, in the background. Does nothing where explanations are turned off."""
        if self.enabled:
            # Messages are buffered until it runs.
            self._is_running = True
            self._supervisor.start()

    async def stop(self) -> None:
        """Wait for outstanding counts, for a second at most, and end the process."""
        await self._supervisor.stop()
        self._give_up()

    async def configure(
        self,
        settings: ExplainSettings,
        gpus: Mapping[str, float],
        canon: CanonOptions | None = None,
        *,
        experiment: Mapping[str, float | str] | None = None,
        token_prices: Mapping[str, TokenPrices] | None = None,
    ) -> None:
        """Apply other settings. The process keeps its state, unless explanations are turned on or off."""
        before = self._options
        self._options = _worker_options(
            settings, gpus, canon, experiment, token_prices, publishes_seen=before.publishes_seen
        )
        self._send_buffer.max_bytes = self._options.max_waiting_bytes
        self._cpu_share.most = settings.max_cpu_share
        if settings.enabled != self.enabled:
            self.enabled = settings.enabled
            await self.stop()
            self.start()
        elif self._options != before and self._supervisor.child is not None:
            self._send(self._options)
            self._send_buffer.repeats.forget()
            # With other bounds the worker may start with empty state.
            for event in self._gone_replicas.events():
                self._send_buffer.add(event)
            self._flush()

    @property
    def accepts_text(self) -> bool:
        """Whether body and tokens of a request can be stored; without them, ``RequestRecord`` has neither."""
        return self._is_running and self._send_buffer.has_room()

    def admits(self, tokens: int, conversation: Callable[[], int], *, is_compared: bool) -> bool:
        """Whether a request is passed on with its text.

        Args:
            tokens: As for ``CpuShare.admits``.
            conversation: Likewise.
            is_compared: Whether its client asked for a comparison, which its next turn may need, too.
        """
        is_admitted = self._cpu_share.admits(tokens, conversation) or (is_compared and self._cpu_share.has_room)
        return is_admitted and self.accepts_text

    def record_request(self, record: RequestRecord) -> None:
        """A request was answered. Never raises and never waits."""
        if not self.enabled:
            return
        try:
            self._take(record)
        except Exception as error:  # noqa: BLE001 - must never fail a request
            _log.error("explain_failed", step="handing over", error=type(error).__name__)

    def record_sample(self, sample: ExperimentSample) -> None:
        """A sample of the experiment. Dropped while the worker cannot keep up: both groups lose the same share."""
        if self.enabled and self._is_running and self._send_buffer.has_room():
            self._send_buffer.add(sample, _SAMPLE_BYTES)
            self._flush_later()

    def record_marker(self, kind: MarkerKind, text: str) -> None:
        """Add a marker to the trend."""
        if self.enabled:
            self._send_buffer.add(Marker(time.time(), kind, text))
            self._flush_later()

    def record_event(self, event: CacheEvent) -> None:
        """An event that changed a cache, such as a restart."""
        self._gone_replicas.note(event)
        # Without a process the event is irrelevant: a new process starts with empty state.
        if self.enabled and self._is_running:
            self._send_buffer.add(event)
            self._flush_later()

    async def ask(self, question: str, arguments: Mapping[str, str]) -> bytes:
        """The answer to a question as a JSON document.

        Args:
            question: As ``Stats.answer``. The answer to ``tokens`` holds token ids and must not be shown: ``{"model",
                "equal_tokens", "before": [ids], "after": [ids], "first"}``, equal up to ``first``; ``null`` where there
                is nothing to compare. That to ``figures`` is for other gateways.
            arguments: The query's parameters; for ``request`` and ``tokens`` the request's ``id``.

        Raises:
            BadRequest: a parameter is wrong; message and param say how.
            NotFound: there is no such request in the journal.
            GatewayError: explanations are turned off, or their process does not answer.
        """
        if not self.enabled:
            raise explain_off()
        if not self._is_running:
            raise ExplainUnavailable("The process that explains requests is being started again; see explain_lost.")
        others: tuple[bytes, ...] | None = ()
        if question == "summary" and arguments.get("gateways") and self.peer_figures is not None:
            others = await self.peer_figures.read()
        if question == "report" and arguments.get("gateways") and self.history_keeper is not None:
            others = await self.history_keeper.others()
        return await self._questions.ask(
            lambda number: self._send(Question(number, question, dict(arguments), others)), self._answer_seconds
        )

    async def diagnose(self, record: RequestRecord, named: str, client: ClientPlaces) -> PromptDiagnosis | None:
        """Compare a request that is placed with the one that its client names; None if that takes more than 50 ms."""
        if not self.enabled or not self._has_options or not self._send_buffer.has_room():
            return UNAVAILABLE

        def send(number: int) -> None:
            size = sum(map(len, (record.body, *record.parts)))
            self._send_buffer.add(NamedComparison(number, named, client, record), size)
            self._flush(all_gathered=True)

        try:
            return msgspec.json.decode(await self._questions.ask(send, _DIAGNOSE_SECONDS), type=PromptDiagnosis)
        except GatewayError:
            return None

    # For ``HistoryKeeper``.

    def restore(self, data: bytes) -> None:
        """Give the worker a history to go on with, also after it was started again."""
        self._stored.append(data)
        self._send(StoredHistory(data))

    def saved(self, data: bytes) -> None:
        """The worker's whole history was saved: this is what a new worker goes on with."""
        self._stored = [data]

    async def history(self) -> bytes:
        """The worker's history.

        Raises:
            GatewayError: the worker does not answer.
        """
        return await self.ask("history", {})

    # For ``ExplainSupervisor``.

    @property
    def awaits_reply(self) -> bool:
        """Whether the process owes a reaction to something that was sent."""
        return self._send_buffer.awaits or bool(self._questions)

    def on_started(self) -> None:
        """A new process was started, without any state."""
        self._is_running = self._has_options = True
        self._write(self._options)
        for data in self._stored:
            self._write(StoredHistory(data))
        for event in reversed(self._gone_replicas.events()):
            self._send_buffer.add_first(event)
        self._hand_over_skipped()
        self._flush()
        self._questions.repeat()

    def on_frame(self, frame: RawMessage) -> None:
        """A frame was received."""
        match message := frame.decode():
            case Ready():
                self._supervisor.pid = message.pid
            case WorkReport():
                self._count(message)
            case QuestionAnswer():
                self._questions.answered(message)
            case Notice():
                _log.error(message.event, **message.fields)
            case _:
                pass

    def on_lost(self) -> None:
        """The process is lost with its state."""
        self._give_up()
        self._questions.refuse_all("The process that explains requests was lost; it is being started again.")

    async def drain(self) -> None:
        """Wait until the process has handled all requests, within a timeout: it is about to be ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_seconds):
                while not self._send_buffer.is_empty:
                    self._flush()
                    self._progress.clear()
                    await self._progress.wait()

    def _give_up(self) -> None:
        self._is_running = self._has_options = False
        self._cancel_flush()
        for held in self._send_buffer.give_up():
            self._skip(held)

    # Sending.

    def _take(self, record: RequestRecord) -> None:
        is_held, is_plain = self._send_buffer.put(record, with_text=self._is_running)
        if not is_held:
            self._skip(sent_message(record)._replace(is_skipped=False))
            return
        if is_plain and not record.warming:
            self._observer.on_explain_skipped(1)
        if self._send_buffer.unsent_bytes >= GATHER_BYTES:
            self._flush()
        else:
            self._flush_later()

    def _take_peer_prompts(self, messages: tuple[bytes, ...]) -> None:
        """Pass on prompts computed for another gateway; dropped while the buffer is full."""
        if self.receives_seen and self.enabled and self._is_running and self._send_buffer.has_room():
            self._send_buffer.add(PeerPrompts(time.time(), messages), sum(map(len, messages)))
            self._flush_later()

    def _flush_later(self, *, soon: bool = False) -> None:
        if self._flush_timer is None and self._has_options:
            pause = _BETWEEN_BATCHES_SECONDS if soon else _GATHER_SECONDS
            self._flush_timer = asyncio.get_running_loop().call_later(pause, self._flush)

    def _cancel_flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None

    def _flush(self, *, all_gathered: bool = False) -> None:
        self._cancel_flush()
        child = self._supervisor.child
        if not self._has_options or child is None:
            return
        if frames := self._send_buffer.encoded(all_gathered=all_gathered):
            child.write(frames)
        if self._send_buffer.unsent_bytes:
            self._flush_later(soon=True)

    def _send(self, message: ToWorker) -> None:
        """Send a message that is not held, behind the frames sent now; ``on_started`` repeats one that is too early."""
        self._flush(all_gathered=True)
        if self._has_options:
            self._write(message)

    def _write(self, message: ToWorker) -> None:
        if (child := self._supervisor.child) is not None:
            frame = bytearray()
            encode(message, frame)
            child.write(frame)

    def _cannot_send(self, held: SentMessage, error: Exception) -> None:
        _log.error("explain_failed", step="encoding", error=type(error).__name__)
        self._skip(held)

    # Counting.

    def _count(self, report: WorkReport) -> None:
        undecodable = set(report.undecodable)
        explained = 0
        for number in range(report.handled):
            held = self._send_buffer.done()
            if held.totals is not None and not held.is_skipped:
                explained += held.totals.prompt_tokens
            if number in undecodable:
                self._skip(held)
        for model, tenant_label, reason, tokens in report.missed:
            self._observer.on_missed(model, tenant_label, reason, tokens)
        for rule, mode, edits, saved, lost in report.canonical:
            self._observer.on_canonical(rule, mode, edits, saved, lost)
        if report.seen:
            self.replicated_seen.add(report.seen)
        self._cpu_share.spent(report.cpu_seconds, explained)
        self._progress.set()
        if self._skipped and self._send_buffer.has_room():
            self._hand_over_skipped()
            self._flush_later()

    def _skip(self, held: SentMessage) -> None:
        """Count the tokens of a request, or of a sum of requests, that is not explained."""
        totals = held.totals
        if totals is None:
            return
        if not held.is_counted:
            missed = totals.prompt_tokens - totals.hits
            if missed:
                self._observer.on_missed(totals.model, totals.tenant_label, Reason.UNCLASSIFIED, missed)
            if not held.is_skipped:
                self._observer.on_explain_skipped(totals.requests)
        self._skipped.add(totals)

    def _hand_over_skipped(self) -> None:
        for totals in self._skipped.take():
            self._send_buffer.add(totals)


def _worker_options(
    settings: ExplainSettings,
    gpus: Mapping[str, float],
    canon: CanonOptions | None,
    experiment: Mapping[str, float | str] | None,
    token_prices: Mapping[str, TokenPrices] | None,
    *,
    publishes_seen: bool,
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
        publishes_seen=publishes_seen,
        experiment=experiment,
        token_prices=dict(token_prices or {}),
        observed_share=settings.observed_share,
    )


class OpenQuestions:
    """Questions that wait for an answer."""

    def __init__(self) -> None:
        self._asked = 0
        self._open: dict[int, tuple[Callable[[int], None], asyncio.Future[QuestionAnswer]]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def repeat(self) -> None:
        """Send all open questions again."""
        for number, (send, _) in self._open.items():
            send(number)

    async def ask(self, send: Callable[[int], None], seconds: float) -> bytes:
        """Send a question with its number, and wait for its answer for so many seconds.

        Raises:
            GatewayError: As ``ExplainClient.ask``.
        """
        loop = asyncio.get_running_loop()
        self._asked += 1
        number, answered = self._asked, loop.create_future()
        late = f"The process that explains requests did not answer within {seconds:g} s."
        timer = loop.call_later(seconds, _refuse, answered, late)
        self._open[number] = (send, answered)
        try:
            send(number)
            answer: QuestionAnswer = await answered
        finally:
            timer.cancel()
            del self._open[number]
        if answer.status != 200:
            raise refusal(answer.status, answer.message, answer.param, answer.code)
        return answer.document

    def answered(self, answer: QuestionAnswer) -> None:
        """Deliver an answer; ignored if its question has timed out."""
        _, future = self._open.get(answer.number, (None, None))
        if future is not None and not future.done():
            future.set_result(answer)

    def refuse_all(self, why: str) -> None:
        """Fail all open questions."""
        for _, future in self._open.values():
            _refuse(future, why)


def _refuse(question: "asyncio.Future[QuestionAnswer]", why: str) -> None:
    if not question.done():
        question.set_exception(ExplainUnavailable(why))


class ExplainUnavailable(GatewayError):
    """The explain worker is not running, or does not answer."""

    status = 503
    type = "service_unavailable"
    retry_after_seconds = 2

    def __init__(self, message: str) -> None:
        super().__init__(message, code="explain_unavailable")


def explain_off() -> NotFound:
    """Explanations are turned off."""
    return NotFound("Explanations are turned off. Set explain.enabled: true.", code="explain_off")


def refusal(status: int, message: str, param: str | None, code: str | None) -> GatewayError:
    """The exception for a refusal by the worker."""
    kind = {400: BadRequest, 404: NotFound}.get(status, GatewayError)
    return kind(message, param=param, code=code)
