"""The event index against a model of the engine's block pool, after every step of it."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index.engine_model import Engine, Prompt
from index.event_index import TARGET, depth, digest, event_index, gpu_copies

from gateway.core.prompt import MediaItem

SIZE = 16

# Few letters, so that prompts share beginnings, and orphans begin as other prompts do.
letters = st.lists(st.integers(0, 1), min_size=1, max_size=5)
media = st.one_of(
    st.just(()),
    st.tuples(
        st.builds(MediaItem, st.integers(0, 60), st.integers(1, 40), st.sampled_from(["cat", "dog"])),
    ),
)
prompts = st.builds(
    lambda blocks, rest, salt, adapter, items: Prompt(
        tuple(letter for letter in blocks for _ in range(SIZE))[: len(blocks) * SIZE - rest], salt, adapter, items
    ),
    letters,
    st.sampled_from([0, 0, 1, 15]),
    st.sampled_from(["", "", "", "tenant"]),
    st.sampled_from(["", "", "", "polite"]),
    media,
)
steps = st.one_of(
    st.tuples(st.just("ask"), prompts),
    st.tuples(st.just("ask"), prompts),
    st.tuples(st.just("decode"), st.integers(1, 40)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("reset"), st.none()),
)


class Pair:
    """An engine, and an index that receives what the engine publishes."""

    def __init__(self, blocks):
        self.engine = Engine(blocks, SIZE)
        self.index = event_index()
        self.seen = []

    def do(self, step, argument):
        engine = self.engine
        if step == "ask":
            self.seen.append(argument)
            if engine.begin(argument):
                self.seen.append(engine.running[-1].prompt)
        elif step == "reset":
            engine.reset()
        elif step == "invalidate":
            for block in list(engine.named_blocks())[argument : argument + 1]:
                engine.invalidate(block)
        elif engine.running:
            request = engine.running[argument % len(engine.running)]
            if step == "end":
                self.seen.append(request.prompt)
                engine.end(request)
            else:
                for _ in range(argument):
                    if not engine.decode(request, 1):
                        break
        events = engine.take_events()
        for event in events:
            self.index.apply(TARGET, event)
        return events

    def check(self, questions=()):
        for prompt in [*self.seen, *questions]:
            assert depth(self.index, prompt, SIZE) == self.engine.hit(prompt)
        part = self.index.part(TARGET)
        copies, waiting = (Counter(gpu_copies(part)), part.waiting) if part else (Counter(), 0)
        if waiting:
            assert copies <= self.engine.copies()
            return
        assert copies == self.engine.copies()
        if part:
            assert part.blocks.digest == digest(self.engine)
            assert part.blocks.held == len(copies)
            assert part.blocks.gpu_copies == copies.total()
            assert part.holders.blocks == len(copies)


@settings(max_examples=2 * settings.default.max_examples)
@given(order=st.lists(steps, max_size=30), blocks=st.integers(4, 14), questions=st.lists(prompts, max_size=5))
def test_index_equals_the_engine_after_every_step(order, blocks, questions):
    pair = Pair(blocks)
    for step, argument in order:
        pair.do(step, argument)
        pair.check(questions)
        part = pair.index.part(TARGET)
        assert part is None or not part.waiting, "everything was described"


@settings(max_examples=2 * settings.default.max_examples)
@given(
    order=st.lists(st.one_of(steps, st.tuples(st.just("invalidate"), st.integers(0, 9))), max_size=30),
    blocks=st.integers(4, 14),
    questions=st.lists(prompts, max_size=5),
)
def test_index_reuses_what_the_engine_does_when_blocks_go_from_the_middle(order, blocks, questions):
    pair = Pair(blocks)
    for step, argument in order:
        pair.do(step, argument)
        pair.check(questions)


def fill(pair, salt):
    for number in range(6):
        pair.do("ask", Prompt(tuple(range(number, number + 70)), salt=salt))
        pair.do("decode", 40)
        pair.do("end", 0)


@pytest.mark.parametrize("emptied", ["invalidate", "reset"])
def test_nothing_is_left_when_the_engine_is_empty_again_however_often(emptied):
    pair = Pair(40)
    sizes = set()
    for turn in range(12):
        fill(pair, f"tenant-{turn}")
        pair.check()
        assert pair.engine.copies()
        if emptied == "reset":
            pair.do("reset", None)
        while pair.engine.copies():
            pair.do("invalidate", 0)
        while pair.index.purge(1000):
            pass
        part = pair.index.part(TARGET)
        assert (part.blocks.held, part.blocks.gpu_copies, part.waiting) == (0, 0, 0) if part else True
        pair.seen.clear()
        fill(pair, "the-same")
        sizes.add((pair.index.nbytes, pair.index.part(TARGET).holders.blocks))
        for _ in range(40):
            pair.do("invalidate", 0)
    assert pair.index.part(TARGET).holders.blocks == 0
    assert len(sizes) == 1


def test_equal_blocks_computed_twice_are_held_until_both_are_gone():
    pair = Pair(20)
    prompt = Prompt((7,) * 48)
    pair.do("ask", prompt)
    pair.do("ask", prompt)
    names = prompt.names(SIZE)
    assert gpu_copies(pair.index.part(TARGET)) == {names[0]: 1, names[1]: 1, names[2]: 2}
    longer = Prompt((7,) * 49)
    pair.engine.invalidate(pair.engine.running[0].blocks[2])
    pair.do("end", 0)
    assert depth(pair.index, longer, SIZE) == 3
    pair.engine.invalidate(pair.engine.running[0].blocks[2])
    pair.do("end", 0)
    assert depth(pair.index, longer, SIZE) == 2


def test_prompt_is_found_only_where_salt_adapter_and_images_are_the_same():
    image, other = (MediaItem(20, 10, "cat"),), (MediaItem(20, 10, "dog"),)
    moved = (MediaItem(21, 10, "cat"),)
    tokens = (5,) * 65
    kinds = [
        Prompt(tokens),
        Prompt(tokens, salt="a"),
        Prompt(tokens, salt="b"),
        Prompt(tokens, adapter="a"),
        Prompt(tokens, adapter="b"),
        Prompt(tokens, salt="a", adapter="a"),
    ]
    for stored in kinds:
        pair = Pair(20)
        pair.do("ask", stored)
        assert [depth(pair.index, asked, SIZE) for asked in kinds] == [4 * (asked == stored) for asked in kinds]
    pictures = [Prompt(tokens), *(Prompt(tokens, media=items) for items in (image, other, moved))]
    for stored in pictures:
        pair = Pair(20)
        pair.do("ask", stored)
        # The first block has no image in it.
        assert [depth(pair.index, asked, SIZE) for asked in pictures] == [
            4 if asked == stored else 1 for asked in pictures
        ]


def test_cleared_cache_is_empty_at_once_and_fills_again():
    pair = Pair(20)
    prompt = Prompt((7,) * 65)
    pair.do("ask", prompt)
    assert depth(pair.index, prompt, SIZE) == 4
    pair.do("end", 0)
    pair.do("reset", None)
    assert depth(pair.index, prompt, SIZE) == 0
    pair.do("ask", prompt)
    assert depth(pair.index, prompt, SIZE) == 4
