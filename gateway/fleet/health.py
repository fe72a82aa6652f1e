"""Health checks: whether each replica answers, its metrics, and whether it serves the configured model."""

import asyncio
import dataclasses
import random
import time
from array import array
from collections import deque
from typing import Protocol

import orjson
import structlog

from gateway.core.engine_facts import EngineFacts, EngineKind
from gateway.core.ids import ReplicaId
from gateway.core.replica_state import DrainCause
from gateway.engines import (
    MAX_DOCUMENT_BYTES,
    PROBE,
    ServerFacts,
    advice,
    parse_metrics,
    parse_models,
    parse_server_info,
)
from gateway.fleet.engine_calls import credentials
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.fleet.silence import LOOK_SECONDS, Silence
from gateway.fleet.start_times import SEVERAL_FIX
from gateway.http_client import HttpClient, ResponseTooLarge, TransportError
from gateway.tasks import TaskGroupOwner

_CARD_ROUNDS = 30
"""Rounds between two reads of a replica's model list."""

_FRESH_ROUNDS = 10
"""Rounds between two that begin on a new connection: behind a load balancer that may lead to another engine."""

_MAX_NAME = 1000
"""Longest accepted model root or engine version in characters, as they are stored."""

_MAX_SHOWN = 20

_PASSING = (429, 500, 502, 503, 504)
"""Statuses of ``/is_sleeping`` that do not say whether an engine has it."""

_MAX_METRICS_BYTES = 8 * 2**20
"""Limit of a metrics page. A vLLM with eight data-parallel ranks has 400 KiB."""

_MAX_INLINE_BYTES = 32 * 1024
"""Largest metrics page that is parsed on the event loop, which takes up to 7 ms."""

_MAX_LIST_BYTES = 4 * 2**20
"""Limit of a model list: 600 bytes for each model, and each LoRA adapter is one."""

_VALID_INTERVALS = 3
"""Intervals after which the load read from the metrics is no longer used."""

_JITTER = 0.25
"""Share by which the time between two checks varies, so that gateways that were started together do not read the
metrics at the same moments and then all send their requests to the same idle engine."""

_log = structlog.get_logger("gateway.proxy")


class HealthObserver(Protocol):
    """Gets changes of replicas. Must not raise and must not wait."""

    def on_facts(self, replica: Replica) -> None:
        """Its metrics show a new engine kind, ranks or cache configuration."""
        ...

    def on_emptied(self, replica: Replica, started_at: float | None) -> None:
        """It was restarted or was away, so its cache counts as empty.

        Args:
            replica: The replica.
            started_at: Unix time of the new process's start; None if it is unknown.
        """
        ...

    def on_identity(self, replica: Replica, root: str, version: str) -> None:
        """Its model root and engine version were read, each empty if unknown."""
        ...

    def on_up(self, replica: Replica) -> None:
        """It starts to get requests, or continues to after a restart. ``on_identity`` was called before."""
        ...

    def on_down(self, replica: Replica) -> None:
        """It gets no more requests."""
        ...

    def on_sleep(self, replica: Replica, *, asleep: bool) -> None:
        """Its engine fell asleep, and discarded its cache, or woke."""
        ...


class HealthMonitor:
    """Checks every replica periodically, each in a task of its own.

    Args:
        fleet: The replicas.
        client: Connections to them.
        observer: Gets the changes.
        interval_seconds: Mean time between two checks of a replica.
        timeout_seconds: Limit for one check.
        unhealthy_after: Failed checks in a row after which a replica gets no more requests.
    """

    def __init__(
        self,
        fleet: Fleet,
        client: HttpClient,
        observer: HealthObserver,
        *,
        interval_seconds: float,
        timeout_seconds: float,
        unhealthy_after: int,
    ) -> None:
        self._fleet = fleet
        self._client = client
        self._observer = observer
        self._interval = interval_seconds
        self._timeout = timeout_seconds
        self._unhealthy_after = unhealthy_after
        self._tasks = TaskGroupOwner()
        self._started = False
        self._watching: dict[ReplicaId, asyncio.Task[None]] = {}
        self._unchecked = {replica.id for replica in fleet.replicas}
        self._all_checked = asyncio.Event()
        self._without_metrics: set[ReplicaId] = set()
        self._restarted: set[ReplicaId] = set()
        self._sleepless: dict[ReplicaId, float | None] = {}  # start times of engines without /is_sleeping

    async def wait_for_first_round(self) -> None:
        """Wait until every replica was checked once, with any result."""
        if self._unchecked:
            await self._all_checked.wait()

    def start(self) -> None:
        """Start checking."""
        self._started = True
        for replica in self._fleet.replicas:
            self.watch(replica)
        self._tasks.spawn(self._watch_silence(), name="silence")

    def watch(self, replica: Replica) -> None:
        """Start checking a replica that has joined; before ``start``, from ``start`` on."""
        if not self._all_checked.is_set():
            self._unchecked.add(replica.id)
        if self._started:
            self._watching[replica.id] = self._tasks.spawn(self._watch(replica), name=f"health-{replica.id}")

    def moved(self, replica: Replica) -> None:
        """A replica has a new address: check it there."""
        self.forget(replica)
        if replica.facts.started_at is None:
            self._mark_emptied(replica, None)  # it cannot be verified that it is the same process
        self.watch(replica)

    def forget(self, replica: Replica) -> None:
        """Stop checking a replica."""
        if (task := self._watching.pop(replica.id, None)) is not None:
            task.cancel()
        self._without_metrics.discard(replica.id)
        self._restarted.discard(replica.id)
        self._sleepless.pop(replica.id, None)
        self._note_checked(replica)

    async def stop(self) -> None:
        """Stop checking."""
        await self._tasks.cancel()

    async def _watch(self, replica: Replica) -> None:
        failures = 0
        rounds = 0
        began: deque[float] = deque(maxlen=self._unhealthy_after)
        while True:
            try:
                began.append(time.monotonic())
                problem = await self._check(replica, fresh=rounds % _FRESH_ROUNDS == 1)
                failures = failures + 1 if problem else 0
                if problem is None:
                    restarted = replica.id in self._restarted
                    if rounds % _CARD_ROUNDS == 0 or restarted:
                        self._restarted.discard(replica.id)
                        await self._read_card(replica)
                        await self._read_server(replica)
                        await self._read_identity(replica)
                    if restarted and replica.up:
                        self._observer.on_up(replica)  # the restart was too short to be marked down
                    self._mark_up(replica)
                    rounds += 1
                elif replica.up is None or (replica.up and failures >= self._unhealthy_after):
                    rounds = 0
                    self._mark_down(replica, problem)
                if replica.up is False:
                    # A stopped process or a lost machine does not close connections: its requests would wait until
                    # their time-out.
                    for flight in [each for each in replica.flights if each.last_byte_at < began[0]]:
                        flight.call_back("its health checks fail")
            except Exception:  # noqa: BLE001
                # One malformed answer must not end the checks of a replica.
                _log.exception("health_check_failed", replica=replica.id)
            self._note_checked(replica)
            await asyncio.sleep(self._interval * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311

    async def _watch_silence(self) -> None:
        """Take out replicas that answer nothing, while others of their model do."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            elapsed, before = min(now - before, 2 * LOOK_SECONDS), now
            for replica in self._fleet.replicas:
                try:
                    replica.silence.look(replica.flights, now, elapsed)
                    self._judge(replica, now)
                except Exception:  # noqa: BLE001 - as in ``_watch``
                    _log.exception("health_check_failed", replica=replica.id)

    def _judge(self, replica: Replica, now: float) -> None:
        silence, breaker = replica.silence, replica.breaker
        was_stuck = breaker.is_stuck
        if was_stuck and breaker.answered(silence.paced_at):
            _log.info("replica_recovered", replica=replica.id)
        for load in replica.loads.values():
            load.silent_seconds = silence.seconds
        if not silence.seconds or not silence.is_too_long(1.0, on_trial=was_stuck):
            return
        pace = silence.peers_pace([each.silence for each in self._fleet.of(replica.model)])
        seen = {"replica": replica.id, "model": replica.model, "silent_seconds": round(silence.seconds, 1)}
        if pace is None and not was_stuck:
            if not silence.is_reported:
                silence.is_reported = True
                _log.warning("replica_silent", **seen, fix="no other replica is faster; see whether this one hangs")
        elif silence.is_too_long(pace or 1.0, on_trial=was_stuck):
            breaker.silent(now)
            (_log.info if was_stuck else _log.warning)("replica_stuck", **seen, seconds=round(breaker.until - now, 1))
            _call_back(replica, "it answers nothing, while others do")
            silence.progressed(now)  # the next trial begins anew

    def _note_checked(self, replica: Replica) -> None:
        self._unchecked.discard(replica.id)
        if not self._unchecked:
            self._all_checked.set()

    async def _check(self, replica: Replica, *, fresh: bool) -> str | None:
        """One round, ``fresh``: on a new connection, whose turn is next again. Returns the problem, or None."""
        headers = credentials(replica)
        replica.begin_scrape()
        try:
            status, _ = await self._client.fetch(
                "GET", replica.origin, "/health", headers, timeout_seconds=self._timeout, fresh=fresh
            )
            if status != 200:
                return f"/health answered {status}"
            facts, problem = await self._read_metrics(replica)
            await self._follow_sleep(replica, facts)
        except TransportError as failure:
            return str(failure)
        if facts.kind is not None:
            self._without_metrics.discard(replica.id)
            self._apply_facts(replica, _with_server_facts(facts, replica.server))
        elif replica.id not in self._without_metrics:
            # It still serves: its capacity stays at the configured default, and other clients' requests are not seen.
            self._without_metrics.add(replica.id)
            _log.warning("engine_metrics_missing", replica=replica.id, problem=problem, fix=advice(None).metrics)
        return None

    async def _follow_sleep(self, replica: Replica, facts: EngineFacts) -> None:
        """Ask whether the engine sleeps, if it is one that can."""
        if facts.kind is EngineKind.SGLANG or self._sleepless.get(replica.id, -1.0) == facts.started_at:
            return
        try:
            status, body = await self._client.fetch(
                "GET", replica.origin, "/is_sleeping", credentials(replica), timeout_seconds=self._timeout
            )
        except TransportError:
            return  # the engine answers this between two steps: a long one is no failure
        can_sleep = status == 200 and b'"is_sleeping"' in body
        if not can_sleep and status not in _PASSING:
            self._sleepless[replica.id] = facts.started_at
        asleep = can_sleep and b"true" in body
        if asleep is (DrainCause.SLEEPING in replica.drain_causes) or status in _PASSING:
            return
        replica.drain(DrainCause.SLEEPING, on=asleep)
        _log.info("replica_asleep" if asleep else "replica_awake", replica=replica.id, model=replica.model)
        self._ramp(replica)
        self._observer.on_sleep(replica, asleep=asleep)
        if asleep:
            _call_back(replica, "it sleeps")

    async def _read_metrics(self, replica: Replica) -> tuple[EngineFacts, str]:
        """Facts from the metrics, and the problem if there are none."""
        try:
            status, page = await self._client.fetch(
                "GET",
                replica.origin,
                "/metrics",
                credentials(replica),
                timeout_seconds=self._timeout,
                max_bytes=_MAX_METRICS_BYTES,
            )
        except ResponseTooLarge as error:
            return EngineFacts(), str(error)
        if status != 200:
            return EngineFacts(), f"/metrics answered {status}"
        # Only ASCII is read. A large page is parsed in a thread, so that other tasks run in between.
        text = page.decode("latin-1")
        facts = parse_metrics(text) if len(page) <= _MAX_INLINE_BYTES else await asyncio.to_thread(parse_metrics, text)
        return facts, "/metrics has no metric of a known engine"

    def _apply_facts(self, replica: Replica, facts: EngineFacts) -> None:
        before, now, were_several = replica.facts, time.monotonic(), replica.starts.are_several
        if replica.starts.is_restart(facts.started_at):
            _log.warning("replica_restarted", replica=replica.id)
            self._ramp(replica)
            self._mark_emptied(replica, facts.started_at)
        elif replica.starts.are_several and not were_several:
            _log.warning("replica_is_several_engines", replica=replica.id, url=replica.url, fix=SEVERAL_FIX)
            self._mark_emptied(replica, None)
        if before.started_at == facts.started_at and (facts.cache_use or 0.0) > (before.cache_use or 0.0):
            replica.silence.progressed(now)  # prompts or answers have grown
        replica.end_scrape(facts, now + _VALID_INTERVALS * self._interval)
        if _static_facts(before) != _static_facts(facts) or were_several is not replica.starts.are_several:
            _log.info(
                "replica_facts",
                replica=replica.id,
                engine=facts.kind,
                block_size=facts.block_size,
                blocks=facts.blocks,
                ranks=len(facts.ranks),
                prefix_caching=facts.prefix_caching,
            )
            if facts.prefix_caching is False:
                _log.warning("prefix_caching_off", replica=replica.id, fix=advice(facts.kind).prefix_caching)
            self._observer.on_facts(replica)

    def _mark_emptied(self, replica: Replica, started_at: float | None) -> None:
        """It may be a new process, with other flags and an empty cache."""
        replica.usage_details = None
        self._restarted.add(replica.id)
        self._observer.on_emptied(replica, started_at)

    def _ramp(self, replica: Replica) -> None:
        """It is a new process: start the slow start and reset the breaker."""
        now = time.monotonic()
        replica.breaker.reset(now)
        replica.ramp_until = now + self._fleet.ramp_seconds
        replica.silence = Silence()

    def _mark_up(self, replica: Replica) -> None:
        if not replica.up:
            if self._all_checked.is_set():  # replicas that ran before the gateway started need no slow start
                self._ramp(replica)
            replica.up = True
            replica.down_since = None
            _log.info("replica_up", replica=replica.id, model=replica.model, url=replica.url)
            if replica.facts.kind is None:
                self._observer.on_facts(replica)  # no metrics will trigger this
            self._observer.on_up(replica)

    def _mark_down(self, replica: Replica, problem: str) -> None:
        known = replica.facts.started_at is not None
        self._sleepless.pop(replica.id, None)
        replica.up = False
        replica.down_since = time.monotonic()
        _log.warning("replica_down", replica=replica.id, model=replica.model, url=replica.url, problem=problem)
        if not known:
            # It cannot be verified that it keeps its cache, so assume an empty one.
            self._mark_emptied(replica, None)
        self._observer.on_down(replica)

    async def _read_server(self, replica: Replica) -> None:
        """Read SGLang's arguments: its metrics do not show whether prefix caching is on."""
        if replica.facts.kind is not EngineKind.SGLANG:
            return
        try:
            status, body = await self._client.fetch(
                "GET",
                replica.origin,
                "/server_info",
                credentials(replica),
                timeout_seconds=self._timeout,
                max_bytes=MAX_DOCUMENT_BYTES,
            )
            if status != 200:
                return
            server = parse_server_info(orjson.loads(body))
            replica.server = dataclasses.replace(server, probe=await self._read_probe(replica))
        except (TransportError, orjson.JSONDecodeError) as error:
            _log.warning("server_info_unreadable", replica=replica.id, problem=str(error))
            return
        self._apply_facts(replica, _with_server_facts(replica.facts, replica.server))
        if replica.server.usage_details is False and replica.usage_details is None:
            replica.lacks_usage_details()

    async def _read_probe(self, replica: Replica) -> bytes | None:
        """An SGLang's tokens of ``PROBE``; nothing is computed for it."""
        body = orjson.dumps({"model": replica.model, **PROBE})
        headers = [(b"content-type", b"application/json"), *credentials(replica)]
        try:
            status, answer = await self._client.fetch(
                "POST", replica.origin, "/tokenize", headers, body, timeout_seconds=self._timeout
            )
            return array("I", orjson.loads(answer)["tokens"]).tobytes() if status == 200 else None
        except (TransportError, orjson.JSONDecodeError, KeyError, TypeError, OverflowError) as error:
            _log.info("probe_unreadable", replica=replica.id, problem=str(error))
            return None

    async def _read_identity(self, replica: Replica) -> None:
        """Report the replica's model root and engine version."""
        if replica.facts.kind is EngineKind.SGLANG:
            server = replica.server
            root, version = (server.root, server.version) if server else (None, None)
        else:
            root, version = _short_text((replica.card or {}).get("root")), await self._read_version(replica)
        self._observer.on_identity(replica, root or "", version or "")

    async def _read_version(self, replica: Replica) -> str | None:
        try:
            status, body = await self._client.fetch(
                "GET", replica.origin, "/version", credentials(replica), timeout_seconds=self._timeout
            )
            return _short_text(orjson.loads(body)["version"]) if status == 200 else None
        except (TransportError, orjson.JSONDecodeError, KeyError, TypeError) as error:
            _log.info("version_unreadable", replica=replica.id, problem=str(error))
            return None

    async def _read_card(self, replica: Replica) -> None:
        """Read the replica's entry for its model; warn if it serves another."""
        try:
            status, body = await self._client.fetch(
                "GET",
                replica.origin,
                "/v1/models",
                credentials(replica),
                timeout_seconds=self._timeout,
                max_bytes=_MAX_LIST_BYTES,
            )
            if status != 200:
                _log.warning("model_list_unreadable", replica=replica.id, problem=f"/v1/models answered {status}")
                return
            models = parse_models(body, replica.model)
        except (TransportError, ValueError) as error:
            _log.warning("model_list_unreadable", replica=replica.id, problem=str(error))
            return
        # An earlier card is kept if there is none now: one malformed answer does not change the model.
        self._fleet.set_card(replica, models.card or replica.card)
        replica.wrong_model = models.card is None
        if replica.wrong_model:
            _log.error(
                "replica_serves_another_model",
                replica=replica.id,
                configured=replica.model,
                served=list(models.ids[:_MAX_SHOWN]),
                fix="set the model's id to what the engine serves (--served-model-name)",
            )


def _call_back(replica: Replica, problem: str) -> None:
    """End the requests of which no content has come; another replica gets them."""
    for flight in [each for each in replica.flights if each.content_at is None]:
        flight.call_back(problem)


def _short_text(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= _MAX_NAME else None


def _with_server_facts(facts: EngineFacts, server: ServerFacts | None) -> EngineFacts:
    """Facts completed by what the engine reports in ``/server_info`` only."""
    if server is None or facts.prefix_caching is not None:
        return facts
    return dataclasses.replace(facts, prefix_caching=server.prefix_caching)


def _static_facts(facts: EngineFacts) -> tuple[object, ...]:
    """Facts that stay the same between scrapes of one engine process."""
    ranks = [(rank.rank, rank.blocks) for rank in facts.ranks]
    return facts.kind, facts.block_size, facts.prefix_caching, ranks
