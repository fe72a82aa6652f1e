"""Token counts of texts seen before."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from gateway.canon.token_counts import TokenCounts


class Counter:
    """Counts characters, and how often each text was counted."""

    def __init__(self):
        self.asked = []

    def __call__(self, text):
        self.asked.append(text)
        return len(text)


def long(number):
    return f"{number}".rjust(100, ".")


def test_a_text_is_counted_once():
    counter = Counter()
    counts = TokenCounts(counter)
    assert [counts(long(1)), counts(long(1)), counts("\udc00" * 70), counts("\udc00" * 70)] == [100, 100, 70, 70]
    assert counter.asked == [long(1), "\udc00" * 70]


def test_texts_of_one_length_are_distinguished():
    counts = TokenCounts(lambda text: text.count("a"))
    assert [counts("a" * n + "b" * (64 - n)) for n in (3, 5, 3, 5)] == [3, 5, 3, 5]


def test_short_texts_take_no_memory():
    counts = TokenCounts(Counter())
    assert [counts("short"), counts.remembered, counts(long(1)), counts.remembered] == [5, 0, 100, 1]


@pytest.mark.parametrize("most", [1, 2, 10, 101])
def test_no_more_are_remembered_than_allowed(most):
    counts = TokenCounts(Counter(), most)
    for number in range(500):
        counts(long(number % 137))
        assert counts.remembered <= max(2, most)


def test_what_is_asked_for_again_stays_remembered():
    counter = Counter()
    counts = TokenCounts(counter, max_texts=10)
    for number in range(1000):
        counts(long("kept"))
        counts(long(number))
    assert counter.asked.count(long("kept")) == 1


def test_what_is_not_asked_for_again_is_forgotten():
    counter = Counter()
    counts = TokenCounts(counter, max_texts=10)
    for number in [*range(20), 0]:
        counts(long(number))
    assert counter.asked.count(long(0)) == 2


def test_nothing_of_a_text_is_kept():
    counts = TokenCounts(len)
    counts("a secret of many words, which nobody may read")
    assert "secret" not in repr(vars(counts))


@pytest.mark.slow
def test_several_threads_get_the_right_counts():
    counts = TokenCounts(len, max_texts=50)
    texts = ["x" * (100 + n % 200) for n in range(20_000)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(counts, texts)) == list(map(len, texts))
    assert counts.remembered <= 50


def test_a_count_that_fails_is_not_remembered():
    def fail(text):
        raise LookupError

    counts = TokenCounts(fail)
    with pytest.raises(LookupError):
        counts(long(1))
    assert counts.remembered == 0
