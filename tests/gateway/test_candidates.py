"""The candidates of requests: kept until the fleet changes, and never longer."""

from types import SimpleNamespace

import pytest
from fleets import MODEL, NOW, replica
from hypothesis import given
from hypothesis import strategies as st
from index.event_index import HASHER, WORTH, Blocks

from gateway.candidates import CandidateFinder
from gateway.core.engine_facts import EngineFacts, EngineKind, RankFacts
from gateway.core.errors import NoReplica
from gateway.core.ids import ReplicaId, Target
from gateway.core.kv_events import AllBlocksCleared
from gateway.fleet.fleet import Fleet
from gateway.index import ReplicaIndex

OWN_SIZE = 48
"""Tokens per block of a replica that reports none."""


def request(*, headers=(), regions=(), tried=(), warmup=None):
    """The context of a request, as far as the finder reads it."""
    tenant = SimpleNamespace(regions=frozenset(regions))
    asked = SimpleNamespace(headers=headers, caller=SimpleNamespace(tenant=tenant), warmup_target=warmup, path="")
    return SimpleNamespace(encoded=SimpleNamespace(request=asked, model=SimpleNamespace(id=MODEL)), tried=tried)


def asks_for(rank):
    return request(headers=[(b"x-data-parallel-rank", str(rank).encode())])


class Setup:
    """Replicas of one model with an index."""

    def __init__(self, names="abc"):
        self.replicas = [replica(name, region="eu" if name < "c" else "us") for name in names]
        self.fleet = Fleet(self.replicas)
        self.index = ReplicaIndex(
            HASHER,
            lambda _: MODEL,
            WORTH,
            default_blocks=100,
            speculative_ttl_seconds=30.0,
            on_block_size=self.fleet.changed,
        )
        self.finder = self.new_finder()

    def new_finder(self):
        return CandidateFinder(self.fleet, self.index, OWN_SIZE)

    def look(self, number, ranks=1, block_size=None):
        """The metrics of a replica show so many ranks and this block size."""
        facts = tuple(RankFacts(rank, None, 0, 0) for rank in range(ranks))
        self.replicas[number].end_scrape(EngineFacts(kind=EngineKind.VLLM, block_size=block_size, ranks=facts), NOW)

    def event(self, number, block_size):
        blocks = Blocks(self.index, self.replicas[number].targets[0])
        blocks.size = block_size
        blocks.store("ab")


def shown(finder, context):
    """What a request gets."""
    try:
        found = finder.candidates(context)
    except NoReplica as error:
        return str(error)
    return (
        dict(found.targets),
        dict(found.block_sizes),
        {size: list(targets) for size, targets in found.by_block_size.items()},
        list(found.load_sources),
        found.is_whole,
    )


CHANGES = {
    "down": lambda at, n: setattr(at.replicas[n], "up", False),
    "up": lambda at, n: setattr(at.replicas[n], "up", True),
    "elsewhere": lambda at, n: setattr(at.replicas[n], "region", "us"),
    "fails": lambda at, n: at.replicas[n].breaker.failed(0.0, 0.0),
    "several ranks": lambda at, n: at.look(n, ranks=2),
    "one rank": lambda at, n: at.look(n),
    "blocks of 32": lambda at, n: at.look(n, block_size=32),
    "events with blocks of 16": lambda at, n: at.event(n, 16),
    "events with blocks of 64": lambda at, n: at.event(n, 64),
    "reset": lambda at, n: at.index.apply(at.replicas[n].targets[0], AllBlocksCleared()),
    "forgotten": lambda at, n: at.index.forget(at.replicas[n].id),
    "leaves": lambda at, n: at.replicas[n] in at.fleet.replicas and at.fleet.remove(at.replicas[n]),
    "joins": lambda at, n: at.replicas[n] in at.fleet.replicas or at.fleet.add(at.replicas[n]),
}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(sorted(CHANGES))), max_size=12))
def test_what_a_request_gets_is_what_there_is_now(changes):
    at = Setup()
    for number, change in [(0, "up"), *changes]:
        CHANGES[change](at, number)
        for context in (request(), request(regions=["eu"]), request(tried={"a"}), asks_for(1)):
            assert shown(at.finder, context) == shown(at.new_finder(), context)


def test_the_same_is_used_again_while_nothing_changes():
    at = Setup()
    found = at.finder.candidates(request())
    at.finder.candidates(request(regions=["eu"]))
    at.finder.candidates(request(tried={"a"}))
    assert at.finder.candidates(request()) is found
    at.replicas[0].breaker.failed(NOW, NOW)
    assert at.finder.candidates(request()) is at.finder.candidates(request())


def test_block_sizes_come_from_events_then_from_metrics_then_from_the_configuration():
    at = Setup()
    at.look(0, block_size=32)
    at.look(1, block_size=32)
    at.event(1, 64)
    found = at.finder.candidates(request())
    assert list(found.by_block_size) == [32, 64, OWN_SIZE]
    assert [found.block_sizes[each] for each in at.replicas] == [32, 64, OWN_SIZE]


def test_an_asked_rank_is_all_that_is_left_if_there_is_one():
    at = Setup()
    at.look(1, ranks=2)
    assert list(at.finder.candidates(asks_for(1)).targets) == [Target(ReplicaId("b"), 1)]
    assert len(at.finder.candidates(asks_for(0)).targets) == 3
    assert len(at.finder.candidates(asks_for(5)).targets) == 4
    assert at.finder.candidates(asks_for(5)).is_whole
    assert not at.finder.candidates(asks_for(0)).is_whole


def test_others_are_those_that_are_no_candidates_and_not_gone_for_long():
    at = Setup()
    at.replicas[0].up = at.replicas[1].up = False
    at.replicas[0].down_since, at.replicas[1].down_since = NOW - 50, NOW - 100
    candidates = at.finder.candidates(request())
    assert not candidates.is_whole
    assert [target.replica for target in at.finder.others(MODEL, candidates, NOW, 60.0).targets] == ["a"]


def test_a_warm_up_goes_to_its_target_or_nowhere():
    at = Setup()
    target = Target(ReplicaId("a"))
    assert list(at.finder.candidates(request(warmup=target)).targets) == [target]
    for change in (
        lambda: at.look(0, ranks=2) or Target(ReplicaId("a"), 7),
        lambda: setattr(at.replicas[0], "up", None) or target,
        lambda: Target(ReplicaId("unknown")),
    ):
        with pytest.raises(NoReplica, match="takes no requests"):
            at.finder.candidates(request(warmup=change()))
