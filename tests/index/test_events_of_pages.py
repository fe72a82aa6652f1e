"""SGLang's events: a tree of pages, each prefix once, evicted from its leaves, against the index."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from index.engine_model import Prompt, packed
from index.event_index import TARGET, depth, event_index, gpu_copies

from gateway.core.block_chain import chain_block_size
from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from gateway.core.prompt import MediaItem
from gateway.engines import media_extra


class PageTree:
    """SGLang's radix cache, page by page: least recently used leaves go first, never one that is in use."""

    def __init__(self, page):
        self.page = page
        self.used = {}
        self._clock = 0

    def paths(self, prompt):
        whole = len(prompt.tokens) // self.page * self.page
        return [(prompt.salt, prompt.tokens[:end]) for end in range(self.page, whole + 1, self.page)]

    def name(self, path):
        return hash(("page", path)) % 2**64

    def matched(self, prompt):
        """Tokens of a prompt's whole pages that are cached."""
        paths = self.paths(prompt)
        return next((n for n, path in enumerate(paths) if path not in self.used), len(paths)) * self.page

    def insert(self, prompt):
        """A request is over. Gives the events: one for each new page."""
        self._clock += 1
        events = []
        for path in self.paths(prompt):
            if path not in self.used:
                salt, tokens = path
                parent = self.name((salt, tokens[: -self.page])) if len(tokens) > self.page else None
                page = packed(tokens[-self.page :])
                events.append(BlockStored([self.name(path)], parent, page, self.page, salt=salt))
            self.used[path] = self._clock
        return events

    def evict(self, pages):
        """Drop leaves. Gives the events."""
        gone = []
        parents = Counter((salt, tokens[: -self.page]) for salt, tokens in self.used)
        for _ in range(min(pages, len(self.used))):
            leaf = min((p for p in self.used if not parents[p]), key=lambda p: self.used[p])
            parents[leaf[0], leaf[1][: -self.page]] -= 1
            del self.used[leaf]
            gone.append(self.name(leaf))
        return [BlockRemoved(gone)] if gone else []


def prompts(page):
    unit = max(page // 2, 8)
    return st.builds(
        lambda letters, rest, salt: Prompt(
            tuple(letter for letter in letters for _ in range(unit)) + (9,) * rest, salt
        ),
        st.lists(st.integers(0, 1), max_size=7),
        st.integers(0, 9),
        st.sampled_from(["", "", "tenant"]),
    )


@pytest.mark.parametrize("page", [1, 4, 5, 64])
def test_index_equals_the_tree_after_every_step(page):
    size = chain_block_size(page)

    @given(
        order=st.lists(
            st.one_of(prompts(page), prompts(page), st.integers(1, 200 // page), st.just(None)), max_size=12
        ),
        questions=st.lists(prompts(page), max_size=4),
    )
    def follow(order, questions):
        tree, index = PageTree(page), event_index()
        for step in order:
            if isinstance(step, Prompt):
                events = tree.insert(step)
            elif step is None:
                events = [AllBlocksCleared()]
                tree.used.clear()
            else:
                events = tree.evict(step)
            for event in events:
                index.apply(TARGET, event)
            for prompt in [*questions, *(prompt for prompt in order if isinstance(prompt, Prompt))]:
                reusable = min(tree.matched(prompt), max(len(prompt.tokens) - 1, 0)) // size
                assert depth(index, prompt, size) == reusable
            part = index.part(TARGET)
            copies = gpu_copies(part) if part else {}
            assert copies == {tree.name(path): 1 for path in tree.used}
            if part:
                assert part.waiting == 0
                assert part.blocks.held == sum(len(tokens) % size == 0 for _, tokens in tree.used)

    follow()


@pytest.mark.parametrize("page", [1, 4, 5])
def test_pages_that_come_and_go_leave_nothing_behind(page):
    tree, index = PageTree(page), event_index()
    sizes = set()
    for turn in range(8):
        for number in range(6):
            for event in tree.insert(Prompt((turn, *range(number, number + 60)))):
                index.apply(TARGET, event)
        for event in tree.evict(10**6):
            index.apply(TARGET, event)
        part = index.part(TARGET)
        assert part.holders.blocks == part.blocks.held == part.blocks.digest == 0
        sizes.add(part.nbytes)
    assert len(sizes) == 1


def test_pages_of_one_token_wait_for_their_parents_as_blocks_do():
    tree, index = PageTree(1), event_index()
    prompt = Prompt((*([9] * 5), *([1] * 25), *([2] * 30)))
    events = tree.insert(prompt)
    for event in events[5:]:
        index.apply(TARGET, event)
    assert depth(index, prompt, 16) == depth(index, Prompt(prompt.tokens[5:]), 16) == 0
    for event in events[:5]:
        index.apply(TARGET, event)
    assert depth(index, prompt, 16) == 3
    assert depth(index, Prompt(prompt.tokens[5:]), 16) == 0


def test_images_in_blocks_smaller_than_those_of_the_chain_never_match_others():
    index = event_index()
    tokens = (3,) * 33
    index.apply(
        TARGET,
        BlockStored([1, 2, 3, 4], None, packed(tokens[:32]), 8, extras=[media_extra([("cat", 0)])] * 2 + [None] * 2),
    )
    assert depth(index, Prompt(tokens), 16) == 0
    assert depth(index, Prompt(tokens, media=(MediaItem(0, 16, "dog"),)), 16) == 0
