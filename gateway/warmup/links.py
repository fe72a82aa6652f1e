"""Connects repeated warm-up with the replicas, the spaces and the traffic."""

import random
import time
from collections.abc import Callable

from gateway.core.ids import ModelId, Target
from gateway.fleet.fleet import Fleet
from gateway.overload import Overload
from gateway.spaces import PrefixSpaces
from gateway.stats.hot_prefixes import HotPrefixes
from gateway.telemetry import MetricsObserver
from gateway.warmup.hot_prompts import HotPrompts
from gateway.warmup.lasting import EndedSpaces, WarmLinks
from gateway.warmup.ledger import WarmLedger

_SOON_SHARE = 1 / 3
"""Share of a space's idle time in which it counts as about to expire."""

_DELAY_SECONDS = 5.0
"""Longest delay between the end of a space and its warm-up where several gateways notice the end."""


def warm_links(
    *,
    fleet: Fleet,
    overload: Overload,
    spaces: Callable[[], PrefixSpaces],
    hot: HotPrefixes,
    gpus: Callable[[ModelId], float],
    observer: MetricsObserver,
    several: bool,
) -> WarmLinks:
    """What repeated warm-up needs of the gateway.

    Args:
        fleet: The replicas.
        overload: Whether clients' requests wait.
        spaces: Returns the prefix spaces, which are built later because they notify it of their ends.
        hot: Ranks the prefixes of the traffic.
        gpus: GPUs of one replica of a model.
        observer: Counts costs and savings.
        several: Whether other gateways or workers notice the same end of a space.
    """

    def idle(target: Target) -> bool:
        replica = fleet.find(target.replica)
        if replica is None:
            return True
        if overload.waits(replica.model):
            return False
        loads = [replica.load(target.rank, time.monotonic()) for target in replica.targets]
        return not any(load.requests or load.prefill_tokens for load in loads)

    def delay() -> float:
        return random.uniform(0, _DELAY_SECONDS) if several else 0.0  # noqa: S311 - only spreads the work

    return WarmLinks(
        WarmLedger(gpus, observer),
        HotPrompts(hot),
        EndedSpaces(),
        expiring=lambda now: spaces().expiring(now, _SOON_SHARE),
        owner=lambda caller: spaces().owner(caller.tenant),
        idle=idle,
        delay=delay,
    )
