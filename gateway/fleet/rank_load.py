"""What one data-parallel rank of a replica is busy with: this gateway's requests, and those of others.

This gateway's own requests are known exactly, now. So are, but for a moment, those of other gateways that share their
state with it (``PeerLoads``). Those of anybody else are what the engine counts beyond them, known as of the last time
its metrics were read; in between they are taken to stay, whatever becomes of ours.

All gateways look at the same engines every few seconds, and if each sent its new prompts wherever little was waiting at
the last look, they would rush from one replica to the next together, worse with every look. So each answers for its own
share of what it sees (all their shares together make up the whole), and no two look at the same moments
(``HealthMonitor``).
"""

import math

from gateway.core.engine_facts import RankFacts
from gateway.fleet.model_traffic import ModelTraffic
from gateway.fleet.peer_load import PeerLoad, PeerLoads


class RankLoad:
    """The load of one rank.

    Requests are counted as the engine counts them: one for each choice of each prompt.

    Attributes:
        requests: Client requests sent there and not yet over.
        prefill_tokens: Uncached prompt tokens sent there and not yet computed.
        sequences: Engine requests sent there and not yet over.
        prefilling: Those of them whose prompt is not yet computed.
        peers: What gateways that share their state with this one have there.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.prefill_tokens = 0
        self.sequences = 0
        self.prefilling = 0
        self.peers = PeerLoads()
        self._most_sequences = 0
        self._most_prefilling = 0
        self._beyond = 0
        self._beyond_waiting = 0
        self._foreign = 0
        self._foreign_waiting = 0
        self._valid_until = -math.inf

    def foreign(self, now: float, traffic: ModelTraffic) -> tuple[int, int]:
        """Requests of strangers, and this gateway's share of the tokens that those which wait may have to compute."""
        if not self._foreign or now >= self._valid_until:
            return 0, 0
        return self._foreign, round(self._foreign_waiting * traffic.uncached_tokens * traffic.share)

    def begin_look(self) -> None:
        """The engine is about to be asked for its metrics."""
        self._most_sequences = self.sequences
        self._most_prefilling = self.prefilling
        self.peers.begin_look()

    def end_look(self, facts: RankFacts | None, traffic: ModelTraffic, valid_until: float) -> None:
        """The engine's answer is there.

        At which moment in between the engine counted is not known. Whatever it was, it counted no more requests of ours
        than there were at most since ``begin_look``; only what is beyond them are certainly requests of others.

        Args:
            facts: What the metrics say of this rank; None if nothing.
            traffic: The model's, which learns from it.
            valid_until: Monotonic seconds from which on the look is too old to go by.
        """
        if facts is None or facts.running is None or facts.waiting is None:
            self._valid_until = -math.inf
            return
        self._beyond = facts.running + facts.waiting - self._most_sequences
        self._beyond_waiting = facts.waiting - self._most_prefilling
        self._valid_until = valid_until
        self.peers.end_look()
        self._reckon()
        traffic.seen(self._most_sequences, self.peers.most_sequences + self._foreign)

    def take_peer(self, peer: str, load: PeerLoad) -> bool:
        """Another gateway tells what it has there. Returns whether there is less to do than before."""
        before = self.peers.prefill_tokens, self.peers.sequences
        if not self.peers.take(peer, load):
            return False
        self._reckon()
        return self.peers.prefill_tokens < before[0] or self.peers.sequences < before[1]

    def forget_peer(self, peer: str) -> None:
        """Another gateway is not heard any more: what it has there is that of a stranger."""
        self.peers.forget(peer)
        self._reckon()

    def add(self, sequences: int, prefill_tokens: int) -> None:
        """A request is sent there."""
        self.requests += 1
        self.prefill_tokens += prefill_tokens
        self.sequences += sequences
        self.prefilling += sequences
        self._most_sequences = max(self._most_sequences, self.sequences)
        self._most_prefilling = max(self._most_prefilling, self.prefilling)

    def _reckon(self) -> None:
        """What of the engine's count at the last look is neither ours nor a peer's."""
        self._foreign = max(self._beyond - self.peers.most_sequences, 0)
        self._foreign_waiting = min(max(self._beyond_waiting - self.peers.most_prefilling, 0), self._foreign)


class Ticket:
    """One request's share of a rank's load. Both steps may be repeated without harm.

    Args:
        load: The rank's.
        prefill_tokens: Uncached prompt tokens of the request.
        sequences: What the engine counts it as: one for each choice of each prompt.

    Attributes:
        prefill_ahead: Uncached tokens of this gateway and its peers that were in flight there before.
    """

    __slots__ = ("_load", "_open", "_prefill_tokens", "_prefilling", "_sequences", "prefill_ahead")

    def __init__(self, load: RankLoad, prefill_tokens: int, sequences: int) -> None:
        self._load = load
        self._open = self._prefilling = True
        self._prefill_tokens = prefill_tokens
        self._sequences = sequences
        self.prefill_ahead = load.prefill_tokens + load.peers.prefill_tokens
        load.add(sequences, prefill_tokens)

    def prefill_done(self) -> None:
        """The prompt is computed."""
        if self._prefilling:
            self._prefilling = False
            self._load.prefill_tokens -= self._prefill_tokens
            self._load.prefilling -= self._sequences

    def done(self) -> None:
        """The request is over, however it ended."""
        self.prefill_done()
        if self._open:
            self._open = False
            self._load.requests -= 1
            self._load.sequences -= self._sequences
