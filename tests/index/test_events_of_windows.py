"""Groups of layers that need only the end of a prefix: what the index says is the most the engine can reuse."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from index.engine_model import Prompt, packed
from index.event_index import TARGET, Blocks, depth, event_index

from gateway.core.kv_events import BlockRemoved, BlockStored
from gateway.core.prompt import MediaItem
from gateway.engines import media_extra

WINDOW = 2


class Windowed:
    """An engine with nothing but sliding-window layers: of a run it may keep the end alone, and drops any block."""

    def __init__(self, index):
        self.blocks = Blocks(index)
        self.held = Counter()

    def store(self, path, kept):
        """A request over a whole path, of which the last ``kept`` blocks stay."""
        event = self.blocks.stored(path, sparse=True)
        self.held.update(path[: n + 1] for n in range(len(path) - kept, len(path)))
        self.blocks.index.apply(TARGET, event._replace(names=event.names[-kept:]))

    def extend(self, path, more):
        """A request that goes on behind a block that was named."""
        if path in self.held:
            self.held.update(path + more[: n + 1] for n in range(len(more)))
            self.blocks.store(path + more, start=len(path), sparse=True)

    def remove(self, path):
        if path in self.held:
            self.held -= Counter([path])
            self.blocks.remove(path)

    def hit(self, path):
        """The longest prefix whose last blocks, a window of them, are all there."""
        for end in range(len(path), 0, -1):
            if all(path[: n + 1] in self.held for n in range(max(end - WINDOW, 0), end)):
                return end
        return 0


operations = st.one_of(
    st.tuples(st.just("store"), st.text("ab", min_size=1, max_size=5), st.integers(1, 5)),
    st.tuples(st.just("extend"), st.integers(0, 9), st.text("ab", min_size=1, max_size=3)),
    st.tuples(st.just("remove"), st.integers(0, 9), st.none()),
)


@given(order=st.lists(operations, max_size=25))
def test_engine_never_reuses_more_than_the_index_says(order):
    engine = Windowed(event_index())
    seen = set()
    for what, first, second in order:
        if what == "store":
            engine.store(first, min(second, len(first)))
            seen.add(first)
        elif engine.held:
            path = sorted(engine.held)[first % len(engine.held)]
            if what == "extend":
                engine.extend(path, second)
                seen.add(path + second)
            else:
                engine.remove(path)
        for path in seen:
            assert engine.blocks.depth(path) >= engine.hit(path)
            held = [n + 1 for n in range(len(path)) if any(p.startswith(path[: n + 1]) for p in engine.held)]
            assert engine.blocks.depth(path) == max(held, default=0)
    for path in sorted(engine.held.elements()):
        engine.remove(path)
    if engine.blocks.part is not None:
        assert engine.blocks.part.blocks.held == engine.blocks.part.blocks.digest == 0
        assert engine.blocks.part.holders.blocks == 0


def test_memory_stays_when_windows_come_and_go():
    rng = random.Random()
    engine = Windowed(event_index())
    kept = []
    for turn in range(4):
        for _ in range(500):
            path = "".join(rng.choices("abcdefgh", k=4)) + str(turn)
            engine.store(path, 2)
        for path in sorted(engine.held.elements()):
            engine.remove(path)
        kept.append(len(engine.blocks.part._chain_of))
    assert kept == [0] * 4


def test_window_shows_only_by_the_missing_names_when_the_engine_does_not_say():
    blocks = Blocks(event_index())
    event = blocks.stored("abcd")
    blocks.index.apply(TARGET, event._replace(names=event.names[2:]))
    assert blocks.depth("abcd") == 4
    blocks.remove("abcd")
    assert blocks.depth("abcd") == 3
    blocks.remove("abc")
    assert blocks.depth("abcd") == 0


@pytest.mark.parametrize("kept", [1, 3])
def test_images_in_a_window_never_match_others(kept):
    index = event_index()
    tokens = (3,) * 65
    extras = [media_extra([("cat", -16 * n)]) for n in range(4)]
    event = BlockStored(
        list(range(4 - kept + 1, 5)), None, packed(tokens[:64]), 16, sparse=True, extras=extras[4 - kept :]
    )
    index.apply(TARGET, event)
    assert depth(index, Prompt(tokens), 16) == 0
    assert depth(index, Prompt(tokens, media=(MediaItem(0, 64, "dog"),)), 16) == 0
    index.apply(TARGET, BlockRemoved([4]))


def test_salt_of_a_window_is_kept_apart():
    blocks = Blocks(event_index())
    event = blocks.stored("abcd", sparse=True, salt="tenant")
    blocks.index.apply(TARGET, event._replace(names=event.names[2:]))
    assert blocks.depth("abcd") == 0
    assert blocks.depth("abcd", salt="tenant") == 4
