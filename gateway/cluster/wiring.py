"""Connects the gateway's components to the state shared through Redis, if ``state`` is configured."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gateway.admission import Authenticator
from gateway.api.dialects.response_store import ResponseStore
from gateway.config.settings import Settings
from gateway.core.ids import ModelId, Target
from gateway.core.ports import PrefixIndex, Replicated
from gateway.explain.worker import ExplainClient
from gateway.explain.worker.explain_replication import WRITTEN_SECONDS, PeerFigures
from gateway.explain.worker.history_keeper import SharedHistory
from gateway.fleet.drains import Drains
from gateway.fleet.fleet import Fleet
from gateway.index import ReplicatedIndex
from gateway.spaces import PrefixSpaces, ReplicatedSpaces, SpaceKeeper
from gateway.telemetry import MetricsObserver

if TYPE_CHECKING:
    from gateway.cluster.peer_channel import PeerChannel
    from gateway.cluster.records import RedisRecords
    from gateway.cluster.redis_context import RedisContextStore
from collections.abc import Iterator

from gateway.cluster.messages import DrainsMessage, LoadsMessage
from gateway.fleet.drains import DrainOrder
from gateway.fleet.rank_load import NO_LOAD, PeerLoad

_HISTORY_SECONDS = 400 * 86_400.0


class ReplicatedLoads:
    """The in-flight load of each rank.

    Args:
        fleet: The replicas; loads of unknown replicas are ignored.
        freed: Called with the model whenever the load of one of its replicas decreased.
    """

    def __init__(self, fleet: Fleet, freed: Callable[[ModelId], None]) -> None:
        self._fleet = fleet
        self._freed = freed
        self._last_sent = LoadsMessage([])

    def changes(self, now: float, *, everything: bool) -> LoadsMessage | None:  # noqa: ARG002 - no clock needed
        """See ``Replicated``."""
        message = LoadsMessage(list(self._own()))
        if message == self._last_sent and not everything:
            return None
        self._last_sent = message
        return message

    def receive(self, peer: str, message: LoadsMessage, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        loads = {(name, rank): PeerLoad(*load) for name, rank, *load in message.loads}
        freed = set()
        for replica in self._fleet.replicas:
            for rank, load in replica.loads.items():
                if load.take_peer(peer, loads.get((replica.id, rank), NO_LOAD)):
                    freed.add(replica.model)
        for model in freed:
            self._freed(model)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. The next message contains everything."""

    def gone(self, peer: str, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``. Its requests still count in the engines' metrics, as foreign load."""
        for replica in self._fleet.replicas:
            for load in replica.loads.values():
                load.forget_peer(peer)

    def _own(self) -> Iterator[tuple[str, int, int, int, int]]:
        for replica in self._fleet.replicas:
            for rank, load in replica.loads.items():
                tokens = load.prefills.tokens
                if load.sequences or tokens:
                    yield replica.id, rank, tokens, load.sequences, load.prefilling


class ReplicatedDrains:
    """Operators' drain orders.

    Args:
        drains: The orders.
    """

    def __init__(self, drains: Drains) -> None:
        self._drains = drains
        self._last_sent: list[DrainOrder] = []

    def changes(self, now: float, *, everything: bool) -> DrainsMessage | None:  # noqa: ARG002 - no clock needed
        """See ``Replicated``."""
        orders = list(self._drains.orders())
        if orders == self._last_sent and not (everything and orders):
            return None
        self._last_sent = orders
        return DrainsMessage(orders)

    def receive(self, peer: str, message: DrainsMessage, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        for order in message.orders:
            self._drains.apply_order(order)

    def missed(self, peer: str, now: float) -> None:
        """See ``Replicated``. The next message contains everything."""

    def gone(self, peer: str, now: float) -> None:
        """See ``Replicated``. Its orders stay in force."""


class ClusterState:
    """The shared state of this gateway; does nothing without ``state``.

    Args:
        settings: The configuration.
        counts: Counts failures and peers.
        fleet: The replicas.
        drains: Operators' drain orders.
        index: The prefix index of this gateway.
        gate: Usage of tenants' limits.
        spaces: The prefix spaces.
        keeper: Their background work.
        on_capacity: Called with a model when the load of a peer at one of its replicas decreased.
        explain: Client of the explain worker.

    Attributes:
        index: The index to use for requests.
        contexts: Shared store of context blocks; None without ``state``.
        history: Shared store of the journals' histories; None without ``state``.
        responses: The store of responses; shared with ``state``.
    """

    def __init__(
        self,
        settings: Settings,
        counts: MetricsObserver,
        *,
        fleet: Fleet,
        drains: Drains,
        index: PrefixIndex,
        gate: Authenticator,
        spaces: PrefixSpaces,
        keeper: SpaceKeeper,
        on_capacity: Callable[[ModelId], None],
        explain: ExplainClient,
    ) -> None:
        self._fleet = fleet
        self.index = index
        self.contexts: RedisContextStore | None = None
        self._exchange: PeerChannel | None = None
        self._records: RedisRecords | None = None
        self._spaces: ReplicatedSpaces | None = None
        self._figures: PeerFigures | None = None
        self._figure_records: RedisRecords | None = None
        self._history_records: RedisRecords | None = None
        self.history: SharedHistory | None = None
        has_tenants = not settings.is_open
        self.responses = ResponseStore(settings.responses, has_tenants=has_tenants)
        self._responses: RedisContextStore | None = None
        self._conversations: RedisRecords | None = None
        url, secret = settings.state, settings.spaces.secret
        if url is None or secret is None:
            return
        # Most gateways have no Redis, and its client takes 0.2 s to import.
        from gateway.cluster import peer_channel, records, redis_context, redis_responses

        self.contexts = redis_context.RedisContextStore(
            url, secret, ttl_seconds=settings.canon.memory_ttl_seconds, on_error=counts.on_state_error
        )
        shared_index = ReplicatedIndex(index, self._knows)
        self.index = shared_index
        self._records = records.RedisRecords(url, secret, "spaces", counts.on_state_error)
        self._spaces = ReplicatedSpaces(spaces, self._records, on_update=keeper.engine_seen_elsewhere)
        keeper.shared = self._spaces
        parts: dict[str, Replicated[Any]] = {
            "loads": ReplicatedLoads(fleet, on_capacity),
            "drains": ReplicatedDrains(drains),
            "index": shared_index,
            "limits": gate.shared,
            "spaces": self._spaces,
            "past": explain.replicated_seen,
        }
        self._exchange = peer_channel.PeerChannel(
            url, secret, parts, on_error=counts.on_state_error, on_peers=counts.on_peers
        )
        exchange = self._exchange
        self._figure_records = records.RedisRecords(url, secret, "figures", counts.on_state_error, WRITTEN_SECONDS)
        self._figures = explain.peer_figures = PeerFigures(
            self._figure_records,
            own=lambda: explain.ask("figures", {}),
            peers=lambda: exchange.peers,
            writes=explain.receives_seen,
        )
        self._history_records = records.RedisRecords(url, secret, "history", counts.on_state_error, _HISTORY_SECONDS)
        self.history = SharedHistory(self._history_records)
        shared = redis_responses.RedisResponses(
            url, secret, settings.responses, has_tenants=has_tenants, on_error=counts.on_state_error
        )
        self.responses, self._responses, self._conversations = shared, shared.shared, shared.conversations

    def configure(self, settings: Settings) -> None:
        """Apply other settings."""
        if self.contexts is not None:
            self.contexts.configure(settings.canon.memory_ttl_seconds)

    async def start(self) -> None:
        """Start. Waits for Redis at most two seconds."""
        if self.contexts is not None:
            self.contexts.start()
        if self._responses is not None:
            self._responses.start()
        if self._exchange is not None:
            self._exchange.start()
        if self._spaces is not None:
            await self._spaces.start()
        if self._figures is not None:
            self._figures.start()

    async def stop(self) -> None:
        """Write pending state and stop."""
        parts = (self._exchange, self._spaces, self._figures, self.contexts, self._responses)
        await asyncio.gather(*(part.stop() for part in parts if part is not None))
        records = (self._records, self._figure_records, self._history_records, self._conversations)
        await asyncio.gather(*(each.close() for each in records if each is not None))

    def _knows(self, target: Target) -> bool:
        return self._fleet.find(target.replica) is not None
