"""Models with several groups of layers, over real sockets: followed where their events say what is reused."""

import time

import msgspec
import pytest
from index.event_index import Blocks, chain_of
from kv_events.feed_reader import LIVE, TARGET, following
from kv_events.publishing_engine import PublishingEngine, on_the_wire
from structlog.testing import capture_logs

from gateway.core.kv_events import IndexSource

FULL = {"kv_cache_spec_kind": "full_attention"}
WINDOW = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 32}
STATE = {"kv_cache_spec_kind": "mamba"}


def stored(path="abcd", *, group=0, kept=None, size=16, **fields):
    event = on_the_wire(Blocks(None).stored(path)) | {"group_idx": group, "block_size": size, **fields}
    if "kv_cache_spec_kind" not in fields:
        del event["kv_cache_spec_kind"]
    names = event["block_hashes"]
    names = names[size // 16 - 1 :: size // 16]
    return event | {"block_hashes": names[-(kept or len(names)) :]}


def removed(path, group):
    return {"type": "BlockRemoved", "block_hashes": [Blocks.name(path)], "medium": "GPU", "group_idx": group}


def publish(engine, *events):
    engine.send(msgspec.msgpack.encode([time.time(), list(events), 0]))


def tokens(reader, path="abcd"):
    chain = chain_of(Blocks(None).prompt(path), 16)
    return reader.index.holdings([chain], [TARGET], 0.0)[0].tokens


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([stored(**FULL), stored(group=1, **WINDOW)], 64),
        ([stored(group=0, kept=2, **WINDOW), stored(group=1, **FULL)], 64),
        ([stored(**FULL), stored(group=1, kept=1, **STATE)], 64),
        ([stored(**FULL), stored(group=1, kept=2, **WINDOW), removed("abcd", 1)], 0),
        ([stored(**FULL), stored(group=1, kept=3, **WINDOW), removed("abcd", 1)], 48),
        ([stored(**FULL), stored(group=1, kept=1, **STATE), removed("abcd", 0)], 0),
        ([stored(**FULL), stored("abcdef", **FULL), stored("abcdef", group=1, size=32, kept=1, **STATE)], 0),
        ([stored(**FULL), stored("abcd", group=1, size=32, kept=1, **STATE)], 64),
    ],
    ids=[
        "dense",
        "sparse",
        "state",
        "window gone",
        "window shorter",
        "state behind a gap",
        "larger",
        "larger, aligned",
    ],
)
def test_what_all_groups_hold_is_warm(run, events, expected):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is LIVE)
            publish(engine, *events)
            await reader.until(lambda: reader.report.batches == 1)
            reader.tick()
            assert reader.index.state(TARGET).source is IndexSource.EVENTS
            assert tokens(reader) == expected
            assert reader.report.problem is None
        engine.end()

    run(body)


@pytest.mark.parametrize(
    "events",
    [
        [stored(kept=2, **WINDOW)],
        [stored(kept=1, **STATE)],
        [stored(kept=2)],
        [stored(**FULL), stored(group=1)],
        [stored(**FULL), stored(group=1, kept=1, kv_cache_spec_kind="chunked_local_attention")],
        [stored(size=32, **FULL), stored(group=1, **WINDOW)],
    ],
    ids=["only a window", "only a state", "parts without a kind", "no kind", "chunks", "smaller blocks"],
)
def test_a_cache_whose_events_are_ambiguous_is_predicted(run, events):
    async def body():
        engine = PublishingEngine()
        async with following(engine) as reader:
            await reader.until(lambda: reader.state is LIVE)
            publish(engine, *events)
            await reader.until(lambda: reader.report.batches == 1)
            with capture_logs() as logs:
                reader.tick()
            assert reader.index.state(TARGET).source is IndexSource.PREDICTED
            assert tokens(reader) == 0
            (line,) = [log for log in logs if log["event"] == "kv_events_undecided"]
            assert reader.report.problem == line["problem"]
            assert line["instead"] == "its cache is predicted"
        engine.end()

    run(body)
