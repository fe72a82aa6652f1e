"""What real engines published about their caches, against what their caches really held.

The files are written by ``python -m tests.engine.capture_events``; version, flags and environment are in them.
"""

import base64
import gzip
import json
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from index.event_index import gpu_copies

from gateway.core.engine_facts import EngineKind
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, FeedState, Medium, Unmatched
from gateway.engines import decode_batch, event_sources, parse_metrics
from gateway.index import ReplicaIndex
from gateway.index.event_holdings import EventHoldings
from gateway.kv_events.order import BatchOrder
from gateway.kv_events.order_actions import Apply, AskReplay
from gateway.tokenize.block_hashes import ChainHasher

FILES = Path(__file__).parents[1] / "golden" / "kv_events"
MODEL = ModelId("a-model")
TARGET = Target(ReplicaId("vllm-0"))
WORTH = dict.fromkeys(Medium, 1.0)

FORMS = ("everything-int", "everything-bytes")
ALL = (*FORMS, "hybrid")


def load(name: str) -> dict[str, Any]:
    (file,) = FILES.glob(f"vllm-*-{name}.json.gz")
    document: dict[str, Any] = json.loads(gzip.decompress(file.read_bytes()))
    return document


def frames(message: list[str]) -> list[bytes]:
    return [base64.b64decode(frame) for frame in message]


def batches(messages: list[list[str]]) -> Iterator[tuple[int, Any]]:
    """Sequence number and batch of each message, read from the end as a subscriber has to."""
    for message in messages:
        *_, sequence, payload = frames(message)
        yield int.from_bytes(sequence, "big"), decode_batch(payload)


class Follower:
    """An index that follows a capture."""

    def __init__(self, capture: dict[str, Any]) -> None:
        self._hasher = ChainHasher()
        self._block_size = capture["flags"]["block_size"]
        self.index = ReplicaIndex(
            self._hasher, lambda replica: MODEL, WORTH, default_blocks=1000, speculative_ttl_seconds=1.0
        )
        self.index.set_capacity(TARGET, capture["flags"]["num_gpu_blocks_override"] - 1)
        self.index.set_feed(TARGET, FeedState.LIVE)
        self.holdings = EventHoldings(self._hasher, lambda replica: MODEL, WORTH, lambda target, chain: None)
        self._batches = batches(capture["messages"])
        self._applied = 0

    def follow(self, messages: int) -> None:
        """Apply what was published until then."""
        while self._applied < messages:
            sequence, batch = next(self._batches)
            assert sequence == self._applied
            for event in batch.events:
                self.index.apply(TARGET, event)
                self.holdings.apply(TARGET, event)
            self._applied += 1

    def copies(self) -> dict[int, int]:
        """Number of copies of every block by the engine's name."""
        part = self.holdings.part(TARGET)
        return gpu_copies(part) if part else {}

    def predicted(self, request: dict[str, Any]) -> int:
        """Tokens of a request that are believed held."""
        root = self._hasher.root(MODEL, request["adapter"], request["salt"])
        chain = self._hasher.chain(root, array("I", request["token_ids"]).tobytes(), self._block_size)
        (holding,) = self.index.holdings([chain], [TARGET], now=0.0)
        return holding.tokens


def held(capture: dict[str, Any], checkpoint: dict[str, Any]) -> dict[int, int]:
    """Copies by name that the engine's block pool held, in the group that keeps whole prefixes."""
    kinds = [group["kind"] for group in capture["groups"]]
    group = kinds.index("FullAttentionSpec")
    return {
        int.from_bytes(bytes.fromhex(name)[-8:], "big") if isinstance(name, str) else name: copies
        for owner, name, copies in checkpoint["holds"]
        if owner == group
    }


@pytest.mark.parametrize("name", ALL)
def test_holdings_equal_the_engines_block_pool_at_every_checkpoint(name: str) -> None:
    capture = load(name)
    follower = Follower(capture)
    for checkpoint in capture["checkpoints"]:
        follower.follow(checkpoint["after_messages"])
        assert follower.copies() == held(capture, checkpoint), checkpoint["about"]
    assert follower.index.unmatched(TARGET) == Unmatched()


@pytest.mark.parametrize("name", ALL)
def test_predicted_tokens_equal_what_the_engine_took_from_its_cache(name: str) -> None:
    capture = load(name)
    follower = Follower(capture)
    hits = misses = 0
    for request in capture["requests"]:
        follower.follow(request["after_messages"])
        if request["together"] or request["bypass"] or request["events_wait"] or request["cached_tokens"] is None:
            continue  # unknown outside of the engine
        assert follower.predicted(request) == request["cached_tokens"], request["about"]
        hits += request["cached_tokens"] > 0
        misses += request["cached_tokens"] == 0
    assert min(hits, misses) >= 15


def test_both_forms_of_hashes_are_equivalent() -> None:
    digests, sums = [], []
    for name in FORMS:
        capture = load(name)
        follower = Follower(capture)
        follower.follow(capture["checkpoints"][1]["after_messages"])
        digests.append(follower.index.state(TARGET).digest)
        sums.append(sorted(follower.copies().values()))
    assert digests[0] == digests[1] not in (None, 0)
    assert sums[0] == sums[1]


def test_the_captures_hold_what_makes_them_worth_keeping() -> None:
    capture = load("everything-int")
    seen = Counter(type(event) for _, batch in batches(capture["messages"]) for event in batch.events)
    assert seen[BlockStored] > 50
    assert seen[BlockRemoved] > 50
    assert seen[AllBlocksCleared] == 2
    assert any(copies > 1 for checkpoint in capture["checkpoints"] for _, _, copies in checkpoint["holds"])
    stored = [e for _, batch in batches(capture["messages"]) for e in batch.events if isinstance(e, BlockStored)]
    assert {event.salt for event in stored} == {"", "tenant-a", "tenant-b"}
    assert {event.adapter for event in stored} == {"", "polite"}
    assert any(event.parent is not None for event in stored)


def test_a_late_start_fills_the_index_from_the_replay() -> None:
    capture = load("everything-int")
    first = Follower(capture)
    first.follow(len(capture["messages"]) - 3)
    late = Follower(capture)
    late.index.set_feed(TARGET, FeedState.CONNECTING)
    order = BatchOrder(replays=True)
    assert AskReplay(0) in list(order.connected())
    for sequence, batch in batches(capture["messages"][:-3]):
        for action in order.replayed(sequence, batch):
            if isinstance(action, Apply):
                for event in action.batch.events:
                    late.index.apply(TARGET, event)
    list(order.replay_ended())
    assert order.state is FeedState.LIVE
    late.index.set_feed(TARGET, order.state)
    assert late.index.state(TARGET) == first.index.state(TARGET)
    assert first.index.state(TARGET).blocks > 0


def test_a_replay_answers_with_the_same_batches_and_an_end() -> None:
    capture = load("everything-int")
    *answered, end = capture["replay"]["answer"]
    start = capture["replay"]["start"]
    assert [frames(message)[-2:] for message in answered] == [
        frames(message)[-2:] for message in capture["messages"][start:]
    ]
    assert frames(end)[-2] == b"\xff" * 8


def test_repeated_reports_of_reused_blocks_never_make_less_of_what_is_held() -> None:
    """Requests can have vLLM publish what they reuse as stored once more; on the wire that looks like another copy."""
    capture = load("reports")
    follower = Follower(capture)
    for checkpoint in capture["checkpoints"]:
        follower.follow(checkpoint["after_messages"])
        engine, believed = held(capture, checkpoint), follower.copies()
        assert engine.keys() <= believed.keys()


@pytest.mark.parametrize(("name", "ranks"), [("one", 1), ("two", 2)])
def test_a_server_reports_its_event_sockets_and_its_blocks_by_rank(name: str, ranks: int) -> None:
    server = load("servers")[name]
    sources = event_sources(EngineKind.VLLM, server["kv_event_sources"], "vllm-0")
    assert [source.rank for source in sources] == list(range(ranks))
    assert all(source.problem is None and source.topic == "kv-events" for source in sources)
    for source in sources:
        given = server["kv_event_sources"][str(source.rank)]
        assert source.events == given["endpoint"].replace("*", "vllm-0")
        assert source.replay == given["replay_endpoint"].replace("*", "vllm-0")
        found = list(batches(server["replay"][str(source.rank)][:-1]))
        assert {batch.rank for _, batch in found} == {source.rank}
        assert any(isinstance(event, BlockStored) for _, batch in found for event in batch.events)
    facts = parse_metrics("\n".join(server["metrics"]) + "\n")
    assert facts.block_size == 32
    assert facts.prefix_caching is True
    assert [(rank.rank, rank.blocks) for rank in facts.ranks] == [(rank, 255) for rank in range(ranks)]
