"""Load of one data-parallel rank of a replica: requests of this gateway, of its peers and of other clients.

Requests of this gateway are known exactly. Requests of peers, gateways that share their state with this one, are known
with a short delay (``PeerLoads``). Requests of other clients are the engine's count beyond both, as of the last scrape
of its metrics; between scrapes they are assumed to stay.

All gateways read the metrics of the same engines every few seconds. If each counted all foreign work, they would all
move to the same idle replica after every scrape. So each counts only its own share of it (all shares add up to the
whole), and scrapes are not synchronous (``HealthMonitor``).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gateway.core.engine_facts import RankFacts
from gateway.core.ids import Target
from gateway.core.replica_state import Load
from gateway.routing import LearnedRates, PrefillsInFlight


class PeerLoad(NamedTuple):
    """In-flight work of one gateway at one rank; as in ``RankLoad``.

    Attributes:
        prefill_tokens: Uncached prompt tokens sent there and not yet computed.
        sequences: Engine requests sent there and not yet over.
        prefilling: Those of them whose prompt is not yet computed.
    """

    prefill_tokens: int
    sequences: int
    prefilling: int


NO_LOAD = PeerLoad(0, 0, 0)


@dataclass(slots=True)
class _PeerEntry:
    """A peer, and the most that it can have had in flight during the last scrape.

    Attributes:
        load: Its current load.
        max_sequences: The most of its sequences.
        max_prefilling: The most of its sequences whose prompt was not yet computed.
        settling: Whether its next message counts for these, too: a request sent before the scrape may be reported
            after it.
    """

    load: PeerLoad = NO_LOAD
    max_sequences: int = 0
    max_prefilling: int = 0
    settling: bool = True


class PeerLoads:
    """The loads of all peers at one rank.

    Attributes:
        prefill_tokens: Sum of all peers.
        sequences: Sum of all peers.
        max_sequences: The most of them that the engine can have counted at the last scrape.
        max_prefilling: Likewise for sequences in prefill.
    """

    def __init__(self) -> None:
        self.prefill_tokens = self.sequences = 0
        self.max_sequences = self.max_prefilling = 0
        self._peers: dict[str, _PeerEntry] = {}
        self._looking = False

    def begin_scrape(self) -> None:
        """The engine's metrics are about to be read."""
        self._looking = True
        for peer in self._peers.values():
            peer.max_sequences, peer.max_prefilling = peer.load.sequences, peer.load.prefilling
        self._sum()

    def end_scrape(self) -> None:
        """The engine's answer is there."""
        self._looking = False
        for peer in self._peers.values():
            peer.settling = True

    def take(self, name: str, load: PeerLoad) -> bool:
        """Set the load of a peer. Returns whether it changed."""
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _PeerEntry()
        elif peer.load == load and not peer.settling:
            return False
        peer.load = load
        if self._looking or peer.settling:
            peer.max_sequences = max(peer.max_sequences, load.sequences)
            peer.max_prefilling = max(peer.max_prefilling, load.prefilling)
            peer.settling = self._looking
        self._sum()
        return True

    def forget(self, name: str) -> None:
        """A peer has left."""
        self._peers.pop(name, None)
        self._sum()

    def _sum(self) -> None:
        peers = self._peers.values()
        self.prefill_tokens = sum(peer.load.prefill_tokens for peer in peers)
        self.sequences = sum(peer.load.sequences for peer in peers)
        self.max_sequences = sum(peer.max_sequences for peer in peers)
        self.max_prefilling = sum(peer.max_prefilling for peer in peers)


_START_UNCACHED_TOKENS = 512.0
"""Start value of uncached prompt tokens per request: about one turn of a conversation."""

_REQUEST_FADE = 0.95
"""Weight a request keeps with each later one: the last 20 count for two thirds."""

_LOOK_FADE = 0.98
"""Weight a scrape of one rank keeps with each later one."""

_SMALLEST_SHARE = 0.125
"""Least share: a gateway that has just started to send has to see foreign load, too."""


class ModelTraffic:
    """One model's traffic as seen by this gateway; shared by all replicas of the model."""

    def __init__(self) -> None:
        self._uncached = _START_UNCACHED_TOKENS
        self._own = self._foreign = 0.0

    @property
    def uncached_tokens(self) -> float:
        """Mean uncached prompt tokens per request."""
        return self._uncached

    @property
    def share(self) -> float:
        """This gateway's share of the requests in the engines, ``_SMALLEST_SHARE`` to 1."""
        return max(_SMALLEST_SHARE, (self._own + 1) / (self._own + self._foreign + 1))

    def sent(self, uncached_tokens: int) -> None:
        """A request with ``uncached_tokens`` was sent."""
        self._uncached += (1 - _REQUEST_FADE) * (uncached_tokens - self._uncached)

    def seen(self, own: int, foreign: int) -> None:
        """A scrape of one rank showed ``own`` requests of this gateway and ``foreign`` of others."""
        self._own = _LOOK_FADE * self._own + own
        self._foreign = _LOOK_FADE * self._foreign + foreign


class RankLoad:
    """The load of one rank.

    Requests are counted as the engine counts them: one for each choice of each prompt.

    Attributes:
        requests: Client requests sent there and not yet over.
        prefills: Prompts sent there and not yet computed.
        sequences: Engine requests sent there and not yet over.
        prefilling: Those of them whose prompt is not yet computed.
        peers: The loads of peers.
        foreign_requests: Requests of other clients, as of the last scrape.
        silent_seconds: How long its replica is silent; a new request is expected to wait as long.
    """

    __slots__ = (
        "_beyond",
        "_beyond_waiting",
        "_foreign_waiting",
        "_max_prefilling",
        "_max_sequences",
        "_valid_until",
        "foreign_requests",
        "peers",
        "prefilling",
        "prefills",
        "requests",
        "sequences",
        "silent_seconds",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.prefills = PrefillsInFlight()
        self.sequences = 0
        self.prefilling = 0
        self.peers = PeerLoads()
        self._max_sequences = 0
        self._max_prefilling = 0
        self._beyond = 0
        self._beyond_waiting = 0
        self.foreign_requests = 0
        self.silent_seconds = 0.0
        self._foreign_waiting = 0
        self._valid_until = -math.inf

    def foreign(self, now: float, traffic: ModelTraffic) -> tuple[int, int]:
        """Requests of other clients, and this gateway's share of the prefill tokens expected of those that wait."""
        if not self.foreign_requests or now >= self._valid_until:
            return 0, 0
        return self.foreign_requests, round(self._foreign_waiting * traffic.uncached_tokens * traffic.share)

    def begin_scrape(self) -> None:
        """The engine's metrics are about to be read."""
        self._max_sequences = self.sequences
        self._max_prefilling = self.prefilling
        self.peers.begin_scrape()

    def end_scrape(self, facts: RankFacts | None, traffic: ModelTraffic, valid_until: float) -> None:
        """The engine's answer is there.

        The engine counted at an unknown moment since ``begin_scrape``. Own requests in its count are at most the
        maximum since then, so only requests beyond it are certainly requests of others.

        Args:
            facts: Metrics of this rank; None without any.
            traffic: The model's traffic, which is updated.
            valid_until: Monotonic seconds from which on the foreign load is ignored.
        """
        if facts is None or facts.running is None or facts.waiting is None:
            self._valid_until = -math.inf
            return
        self._beyond = facts.running + facts.waiting - self._max_sequences
        self._beyond_waiting = facts.waiting - self._max_prefilling
        self._valid_until = valid_until
        self.peers.end_scrape()
        self._update_foreign()
        traffic.seen(self._max_sequences, self.peers.max_sequences + self.foreign_requests)

    def take_peer(self, peer: str, load: PeerLoad) -> bool:
        """Set the load of a peer. Returns whether the load decreased."""
        before = self.peers.prefill_tokens, self.peers.sequences
        if not self.peers.take(peer, load):
            return False
        self._update_foreign()
        return self.peers.prefill_tokens < before[0] or self.peers.sequences < before[1]

    def forget_peer(self, peer: str) -> None:
        """A peer has left: its requests count as those of other clients."""
        self.peers.forget(peer)
        self._update_foreign()

    def send(self, prefill_tokens: int, sequences: int, now: float, speed: LearnedRates) -> "Ticket":
        """A request is sent there.

        Args:
            prefill_tokens: Its uncached prompt tokens.
            sequences: Engine requests: one for each choice of each prompt.
            now: Monotonic seconds.
            speed: The learned rates of its replica.
        """
        prefills = self.prefills
        ahead = self.peers.prefill_tokens
        if prefills.tokens:
            ahead += prefills.left(now, speed.rates.prefill_seconds_per_token)
        self.requests += 1
        self.sequences += sequences
        self.prefilling += sequences
        self._max_sequences = max(self._max_sequences, self.sequences)
        self._max_prefilling = max(self._max_prefilling, self.prefilling)
        return Ticket(self, prefills.add(prefill_tokens, now), sequences, ahead)

    def _update_foreign(self) -> None:
        """Requests in the engine's count at the last scrape that are neither own nor of peers."""
        self.foreign_requests = max(self._beyond - self.peers.max_sequences, 0)
        self._foreign_waiting = min(max(self._beyond_waiting - self.peers.max_prefilling, 0), self.foreign_requests)


class Ticket(msgspec.Struct, eq=False):
    """One request's share of a rank's load. Both steps may be repeated without harm.

    Attributes:
        load: The rank's.
        number: Its number among the prefills there.
        sequences: Engine requests: one for each choice of each prompt.
        prefill_ahead: Uncached tokens left to compute there when it was sent, with those that peers have in flight.
            What was computed already counts no more when the rates are learned from this request's first token.
        is_open: Whether it is in flight.
        prefilling: Whether its prompt is not yet computed.
    """

    load: RankLoad
    number: int
    sequences: int
    prefill_ahead: int
    is_open: bool = True
    prefilling: bool = True

    def prefill_done(self, now: float) -> None:
        """The prompt is computed, at ``now`` in monotonic seconds."""
        if self.prefilling:
            self.prefilling = False
            self.load.prefills.done(self.number, now)
            self.load.prefilling -= self.sequences

    def done(self, now: float) -> None:
        """The request has ended."""
        if self.prefilling:
            self.prefill_done(now)
        if self.is_open:
            self.is_open = False
            self.load.requests -= 1
            self.load.sequences -= self.sequences


class LoadSource(NamedTuple):
    """What the load of a target is made of.

    Attributes:
        target: The target.
        load: The load of its rank.
        speed: The learned rates of its replica.
        traffic: The traffic of its model.
    """

    target: Target
    load: RankLoad
    speed: LearnedRates
    traffic: ModelTraffic


def loads_at(sources: Iterable[LoadSource], now: float) -> list[Load]:
    """The loads of some targets for placement, at ``now`` (monotonic seconds)."""
    loads = []
    for target, own, speed, traffic in sources:
        rates, peers, prefills = speed.rates, own.peers, own.prefills
        requests, prefill_tokens = own.sequences + peers.sequences, peers.prefill_tokens
        if prefills.tokens:
            prefill_tokens += prefills.left(now, rates.prefill_seconds_per_token)
        if own.foreign_requests:
            foreign, foreign_tokens = own.foreign(now, traffic)
            requests += foreign
            prefill_tokens += foreign_tokens
        if own.silent_seconds:
            prefill_tokens += round(own.silent_seconds / max(rates.prefill_seconds_per_token, 1e-9))
        loads.append(Load(target, prefill_tokens, requests, rates))
    return loads
