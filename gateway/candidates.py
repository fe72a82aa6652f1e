"""The candidates of a request: the targets that it may be sent to, with what placement reads of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from gateway.context import RequestContext
from gateway.core.block_chain import chain_block_size
from gateway.core.errors import NoReplica
from gateway.core.ids import ModelId, Target
from gateway.core.ports import PrefixIndex
from gateway.core.replica_state import DrainCause
from gateway.core.request import Endpoint
from gateway.fleet.failures import not_served
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.proxy import asked_rank

_MAX_KEPT = 256
"""Models, with regions and paths, for which the candidates are kept."""


class TargetGroup:
    """Targets that are looked up in the index together.

    Args:
        targets: The targets, with their replicas.
        block_size: Tokens per block of the chains with which prompts are looked up at a replica.

    Attributes:
        targets: The same.
        block_sizes: Those tokens, by replica.
        by_block_size: The targets with each of these block sizes.
    """

    __slots__ = ("block_sizes", "by_block_size", "targets")

    def __init__(self, targets: Mapping[Target, Replica], block_size: Callable[[Replica], int]) -> None:
        self.targets = targets
        self.block_sizes = {replica: block_size(replica) for replica in dict.fromkeys(targets.values())}
        self.by_block_size: dict[int, list[Target]] = {}
        for target, replica in targets.items():
            self.by_block_size.setdefault(self.block_sizes[replica], []).append(target)


class Candidates(TargetGroup):
    """Targets among which one is chosen.

    Args:
        targets: See ``TargetGroup``.
        block_size: See ``TargetGroup``.
        replicas: Every replica of the model.

    Attributes:
        load_sources: What their loads are made of, in the order of ``targets``.
        is_whole: Whether the model has no other targets.
    """

    __slots__ = ("is_whole", "load_sources")

    def __init__(
        self, targets: Mapping[Target, Replica], block_size: Callable[[Replica], int], replicas: Sequence[Replica]
    ) -> None:
        super().__init__(targets, block_size)
        self.load_sources = [replica.load_source(target.rank) for target, replica in targets.items()]
        self.is_whole = len(targets) == sum(len(replica.targets) for replica in replicas)


class _Kept(NamedTuple):
    """Candidates for the next request.

    Attributes:
        version: The fleet's version.
        replicas: The replicas of which they are all targets.
        candidates: They.
    """

    version: int
    replicas: Sequence[Replica]
    candidates: Candidates


class CandidateFinder:
    """Finds the candidates of requests. They are kept until the fleet changes: only loads and rates differ by request.

    Args:
        fleet: The replicas. Its ``changed`` has to be called when a block size in the index changes.
        index: Knows the block sizes of targets with events.
        default_block_size: Tokens per block of a replica whose metrics do not report it.
    """

    def __init__(self, fleet: Fleet, index: PrefixIndex, default_block_size: int) -> None:
        self._fleet = fleet
        self._index = index
        self._default_block_size = default_block_size
        self._kept: dict[tuple[ModelId, frozenset[str], str], _Kept] = {}

    def candidates(self, context: RequestContext) -> Candidates:
        """The candidates of a request: every rank of every routable replica, or the rank that the client requests.

        Raises:
            NoReplica: there are none.
        """
        request, model = context.encoded.request, context.encoded.model.id
        if request.warmup_target is not None:
            return self._warmed(context, request.warmup_target)
        regions = request.caller.tenant.regions
        replicas = self._fleet.routable(model, time.monotonic(), context.tried, regions, request.path)
        kept = self._kept.get((model, regions, request.path))
        if (
            kept is not None
            and kept.version == self._fleet.version
            and (kept.replicas is replicas or kept.replicas == replicas)
        ):
            found = kept.candidates
        else:
            found = self._of_replicas(model, regions, request.path, replicas, keep=not context.tried)
        if len(found.targets) > len(replicas) and (rank := asked_rank(request.headers)) is not None:
            asked = {target: replica for replica in replicas if (target := replica.asked_target(rank)) is not None}
            if asked:
                return self._among(asked, model)
        return found

    def others(self, model: ModelId, candidates: Candidates, now: float, gone_after_seconds: float) -> TargetGroup:
        """The targets of a model that are no candidates, without those of replicas that count as removed.

        Args:
            model: The model.
            candidates: The candidates.
            now: Monotonic seconds.
            gone_after_seconds: A replica that is down for longer counts as removed.
        """
        others = {
            target: replica
            for replica in self._fleet.of(model)
            for target in replica.targets
            if target not in candidates.targets
            and replica.serves()
            and (replica.down_since is None or now - replica.down_since < gone_after_seconds)
        }
        return TargetGroup(others, self.block_size)

    def block_size(self, replica: Replica) -> int:
        """Tokens per block of the chains with which prompts are looked up at a replica."""
        reported = self._index.block_size(replica.targets[0])
        return reported or chain_block_size(replica.facts.block_size or self._default_block_size)

    def _of_replicas(
        self, model: ModelId, regions: frozenset[str], path: str, replicas: Sequence[Replica], *, keep: bool
    ) -> Candidates:
        """Every rank of some replicas."""
        if not replicas:
            known = self._fleet.of(model)
            if known and not any(each.serves(path) for each in known):
                raise not_served(path or Endpoint.CHAT, model)
            allowed = [each for each in known if each.serves(path) and (not regions or each.region in regions)]
            where = f" in {' or '.join(sorted(regions))}" if regions else ""
            sleeps = allowed and all(DrainCause.SLEEPING in each.drain_causes for each in allowed)
            what = "sleeps; wake one (POST /wake_up at the engine)" if sleeps else "takes requests"
            raise NoReplica(
                f"{'Every' if sleeps else 'No'} replica of model {model!r}{where} {what} ({len(allowed)} configured)."
                " Try again in a moment.",
                code="no_replica",
            )
        found = self._among({target: replica for replica in replicas for target in replica.targets}, model)
        if keep:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[model, regions, path] = _Kept(self._fleet.version, replicas, found)
        return found

    def _warmed(self, context: RequestContext, target: Target) -> Candidates:
        replica = self._fleet.find(target.replica)
        takes_requests = replica is not None and replica.up and not replica.draining
        if replica is not None and takes_requests and target in replica.targets and not context.tried:
            return self._among({target: replica}, context.encoded.model.id)
        raise NoReplica(f"Replica {target.replica} takes no requests.", code="no_replica")

    def _among(self, targets: Mapping[Target, Replica], model: ModelId) -> Candidates:
        return Candidates(targets, self.block_size, self._fleet.of(model))
