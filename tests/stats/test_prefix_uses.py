"""Which prefixes are the hottest. Prompts are words here: every letter is a block of 16 tokens."""

import random
import string
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from gateway.core.block_chain import BlockChain
from gateway.core.ports import PrefixUse
from gateway.stats.hot_prefixes import HotPrefixes

SIZE = 16
NOON = 1_795_262_400.0


def chain(prompt, size=SIZE):
    """Its chain: a hash stands for a whole beginning."""
    hashes = [xxh3_64_intdigest(f"{size} {prompt[: end + 1]}".encode()) for end in range(len(prompt))]
    return BlockChain(hashes, size, len(prompt) * size + 3)


class PrefixSetup:
    """Prefixes as they are followed, and one cache that keeps everything."""

    def __init__(self, **options):
        self.hot = HotPrefixes(**options)
        self.now = NOON
        self.cached = {""}
        self.count = 0
        self.words = {}

    def ask(self, prompt, reused=None, model="m", reply=""):
        """A request; it reuses what was asked before, replies included, by default."""
        if reused is None:
            reused = max(end for end in range(len(prompt) + 1) if prompt[:end] in self.cached)
        for end in range(len(prompt + reply)):
            self.cached.add((prompt + reply)[: end + 1])
        self.words |= {each: prompt[: end + 1] for end, each in enumerate(chain(prompt).hashes)}
        self.count += 1
        self.hot.note(chain(prompt), reused * SIZE, PrefixUse(model, "acme", "web", f"r{self.count}"), self.now)

    def hottest(self, limit=1000, model=""):
        return self.hot.hottest(model, limit, self.now)

    def prefixes(self, limit=1000):
        return [self.words[each.chain.hashes[-1]] for each in self.hottest(limit)]

    def of(self, prefix):
        return next(each for each in self.hottest() if self.words[each.chain.hashes[-1]] == prefix)


@pytest.fixture
def prefix_setup():
    return PrefixSetup()


def test_what_several_requests_have_in_common_is_hot(prefix_setup):
    for question in "abcdef":
        prefix_setup.ask("SYSTEM" + question)
    (found,) = prefix_setup.hottest()
    assert prefix_setup.prefixes() == ["SYSTEM"]
    assert found.tokens == 6 * SIZE
    assert found.chain.hashes == chain("SYSTEM").hashes
    assert found.chain.reusable_blocks == 6
    assert found.id == f"{chain('SYSTEM').hashes[-1]:016x}"
    assert found.last_use == PrefixUse("m", "acme", "web", "r6")
    assert found.last_used == NOON
    assert found.requests == 4  # of six: the first two had nothing known in common yet
    assert found.reused_tokens == 4 * 6 * SIZE


def test_prompts_that_have_nothing_in_common_are_not_kept(prefix_setup):
    for letter in string.ascii_letters:
        prefix_setup.ask(letter * 5)
    assert prefix_setup.hottest() == []


def test_turns_of_conversations_do_not_displace_what_they_share(prefix_setup):
    everything = iter(map(chr, range(1000, 100_000)))
    for system in ("BANK", "SHOP"):
        for _ in range(50):
            history = system
            for _ in range(20):
                history += next(everything) * 3
                reply = next(everything) * 4
                prefix_setup.ask(history, reply=reply)
                history += reply
    assert sorted(prefix_setup.prefixes()) == ["BANK", "SHOP"]
    # All turns of all conversations, but for the two by which it showed that they have it in common.
    assert [each.requests for each in prefix_setup.hottest()] == [48 * 20, 48 * 20]


def test_request_that_begins_with_a_prefix_counts_although_nothing_was_cached(prefix_setup):
    for question in "abc":
        prefix_setup.ask("SYSTEM" + question)
    before = prefix_setup.of("SYSTEM")
    prefix_setup.ask("SYSTEMd", reused=0)
    prefix_setup.ask("SYSTEMe", reused=2)
    after = prefix_setup.of("SYSTEM")
    assert after.requests == before.requests + 2
    assert after.reused_tokens == before.reused_tokens + 2 * SIZE


def test_document_below_a_system_prompt_is_a_prefix_of_its_own(prefix_setup):
    for question in "abcdef":
        prefix_setup.ask("SYS" + "DOCUMENT" + question)
    for question in "abcd":
        prefix_setup.ask("SYS" + question)
    # 4 requests for 8 blocks more than SYS has, 7 for 3.
    assert prefix_setup.prefixes() == ["SYSDOCUMENT", "SYS"]
    assert prefix_setup.of("SYS").requests > prefix_setup.of("SYSDOCUMENT").requests


def test_prefix_that_is_hardly_longer_than_another_is_not_hotter(prefix_setup):
    for question in string.ascii_lowercase:
        prefix_setup.ask("SYSTEM" + "X" + question)
    for question in "abcd":
        prefix_setup.ask("SYSTEM" + question, reused=6)
    assert prefix_setup.of("SYSTEMX").requests * 7 > prefix_setup.of("SYSTEM").requests * 6
    assert prefix_setup.prefixes() == ["SYSTEM", "SYSTEMX"]


def test_where_two_prefixes_part_there_is_a_third(prefix_setup):
    for ending in "ABAABBAB":
        prefix_setup.ask(
            "COMMON" + ending * 3 + string.ascii_lowercase[prefix_setup.count],
            reused=9 if prefix_setup.count > 1 else 0,
        )
    assert sorted(prefix_setup.prefixes()) == ["COMMON", "COMMONAAA", "COMMONBBB"]
    assert (
        prefix_setup.of("COMMON").requests
        >= prefix_setup.of("COMMONAAA").requests + prefix_setup.of("COMMONBBB").requests - 1
    )


def test_prefix_found_within_a_longer_one_counts_what_that_counted(prefix_setup):
    for question in "abcde":
        prefix_setup.ask("SYSLONG" + question)
    longer = prefix_setup.of("SYSLONG").requests
    prefix_setup.ask("SYSx", reused=3)
    prefix_setup.ask("SYSy", reused=3)
    assert prefix_setup.of("SYS").requests == longer + 1
    assert prefix_setup.of("SYS").reused_tokens == (longer + 1) * 3 * SIZE
    assert prefix_setup.of("SYSLONG").requests == longer


def test_counts_halve_and_what_was_hot_makes_way(prefix_setup):
    for question in "abcdefghij":
        prefix_setup.ask("OLD" + question)
    before = prefix_setup.of("OLD").requests
    prefix_setup.now += 300
    assert prefix_setup.of("OLD").requests == pytest.approx(before / 2)
    assert prefix_setup.of("OLD").reused_tokens == pytest.approx(before / 2 * 3 * SIZE)
    prefix_setup.ask("OLDz")
    assert prefix_setup.of("OLD").requests == pytest.approx(before / 2 + 1)
    prefix_setup.now += 1200
    for question in "abcd":
        prefix_setup.ask("NEW" + question)
    assert prefix_setup.prefixes() == ["NEW", "OLD"]
    assert prefix_setup.of("OLD").last_used == NOON + 300
    prefix_setup.now += 3600
    assert prefix_setup.prefixes() == []


def test_clock_that_is_set_back_harms_nothing(prefix_setup):
    for question in "abcd":
        prefix_setup.ask("SYS" + question)
    prefix_setup.now -= 3600
    prefix_setup.ask("SYSx")
    assert prefix_setup.of("SYS").requests == 3
    assert prefix_setup.of("SYS").last_used == NOON


def test_limit_and_model_choose_what_is_shown(prefix_setup):
    for model in ("m", "n"):
        for question in "abcdef":
            prefix_setup.ask(model * 4 + question, model=model)
    prefix_setup.ask("mmmmz")
    assert prefix_setup.prefixes(1) == ["mmmm"]
    assert [each.last_use.model for each in prefix_setup.hottest(model="n")] == ["n"]
    assert prefix_setup.hottest(model="unknown") == []


def test_same_text_in_blocks_of_another_size_is_another_prefix():
    hot = HotPrefixes()
    for size, tokens in ((16, 64), (48, 96)):
        for _ in range(3):
            hot.note(chain("abcdef", size), tokens, PrefixUse("m", "", "", ""), NOON)
    assert {(each.chain.block_size, each.tokens) for each in hot.hottest("", 9, NOON)} == {(16, 64), (48, 96)}


def test_prefix_too_long_to_keep_counts_for_what_it_begins_with():
    hot, use = HotPrefixes(), PrefixUse("m", "", "", "")
    long = BlockChain(list(range(1, 6001)), SIZE, 6000 * SIZE + 1)
    for _ in range(3):
        hot.note(BlockChain(long.hashes[:20], SIZE, 20 * SIZE + 1), 10 * SIZE, use, NOON)
    for _ in range(10):
        hot.note(long, 5000 * SIZE, use, NOON)
    assert [(each.tokens, each.requests) for each in hot.hottest("", 9, NOON)] == [(10 * SIZE, 12)]


def test_of_too_many_prefixes_the_hottest_stay():
    prefix_setup = PrefixSetup(most=16)
    draw = random.Random(3)
    for number in range(3000):
        app = min(int(draw.expovariate(0.05)), 400)
        prompt = f"{chr(5000 + app)}{'s' * 5}"
        prefix_setup.ask(prompt + chr(10_000 + number))
        assert len(prefix_setup.hottest()) <= 16
    top = [ord(prefix[0]) - 5000 for prefix in prefix_setup.prefixes(8)]
    assert len(top) == 8
    assert max(top) < 40


def ask_often(prefix_setup, prefix, times):
    for _ in range(times):
        prefix_setup.ask(prefix + chr(10_000 + prefix_setup.count), reused=len(prefix))


def test_prefix_stays_when_a_shorter_one_makes_way():
    prefix_setup = PrefixSetup(most=8)
    for prefix, times in (("A", 2), ("II", 2), ("ABBBBB", 12)):
        ask_often(prefix_setup, prefix, times)
    for letter in "CDEFG":
        ask_often(prefix_setup, letter * 6, 12)
    assert not {"A", "II"} & set(prefix_setup.prefixes())
    before = prefix_setup.of("ABBBBB").requests
    ask_often(prefix_setup, "ABBBBB", 1)
    assert prefix_setup.of("ABBBBB").requests == before + 1
    ask_often(prefix_setup, "ABB", 3)
    assert prefix_setup.of("ABB").requests == before + 1 + 2


def test_prefix_at_which_hot_ones_part_stays():
    prefix_setup = PrefixSetup(most=8)
    for prefix, times in (("II", 2), ("JJJJ", 10), ("SAAAAAA", 12), ("SBBBBBB", 12)):
        ask_often(prefix_setup, prefix, times)
    for letter in "CDE":
        ask_often(prefix_setup, letter * 8, 30)
    assert sorted(prefix_setup.prefixes()) == ["CCCCCCCC", "DDDDDDDD", "EEEEEEEE", "S", "SAAAAAA", "SBBBBBB"]
    for prefix in ("SAAAAAA", "SBBBBBB"):
        before = prefix_setup.of(prefix).requests
        ask_often(prefix_setup, prefix, 1)
        assert prefix_setup.of(prefix).requests == before + 1


WORDS = st.text("ab", min_size=1, max_size=8)


@given(st.lists(st.tuples(WORDS, st.integers(0, 8), st.integers(0, 400)), max_size=60), st.sampled_from([3, 8, 256]))
@example([("aab", 2, 0), ("aab", 2, 0), ("b", 1, 0), ("b", 1, 0), ("aba", 2, 0), ("aba", 2, 0)], 3)
def test_figures_never_exceed_the_actual_amounts(requests, most):
    prefix_setup = PrefixSetup(most=most)
    begun = Counter()
    for prompt, reused, later in requests:
        prefix_setup.now += later
        prefix_setup.ask(prompt, reused=min(reused, len(prompt)))
        begun.update(prompt[: end + 1] for end in range(len(prompt)))
    found = prefix_setup.hottest()
    assert len(found) <= most
    figures = {prefix_setup.words[each.chain.hashes[-1]]: each for each in found}
    assert len(figures) == len(found)
    for prefix, each in figures.items():
        assert each.chain.hashes == chain(prefix).hashes
        assert each.tokens == len(prefix) * SIZE
        assert begun[prefix] >= 2
        assert 0 < each.requests <= begun[prefix]
        assert 0 <= each.reused_tokens <= each.requests * each.tokens * (1 + 1e-9)
        longer = [other.requests for word, other in figures.items() if word != prefix and word.startswith(prefix)]
        assert each.requests >= max(longer, default=0) * (1 - 1e-9)


@given(st.lists(st.tuples(WORDS, st.integers(0, 8)), max_size=60), st.sampled_from([3, 5, 8, 256]))
def test_followed_prefix_counts_every_request_that_begins_with_it(requests, most):
    prefix_setup = PrefixSetup(most=most)
    for prompt, reused in requests:
        before = {prefix: prefix_setup.of(prefix).requests for prefix in prefix_setup.prefixes()}
        prefix_setup.ask(prompt, reused=min(reused, len(prompt)))
        for prefix in before.keys() & set(prefix_setup.prefixes()):
            assert prefix_setup.of(prefix).requests == before[prefix] + prompt.startswith(prefix)
