import struct
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.explain.reference import common_tokens, tokens_behind

RUN = 8


def ids(tokens):
    return struct.pack(f"<{len(tokens)}I", *tokens)


def joined(parts):
    return list(chain.from_iterable(parts))


def fresh(count, start):
    """Tokens that stand nowhere else."""
    return list(range(start, start + count))


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [
        ([], [], 0),
        ([1], [], 0),
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 9, 3], 1),
        ([0x01020304], [0x09020304], 0),
        ([256, 512], [256, 513], 1),
        (fresh(100_000, 0), [*fresh(99_999, 0), 7], 99_999),
        (fresh(100_000, 0), [7, *fresh(99_999, 1)], 0),
    ],
)
def test_common_tokens_are_counted_in_whole_tokens(a, b, common):
    assert common_tokens(ids(a), ids(b)) == common
    assert common_tokens(ids(b), ids(a)) == common


@given(st.lists(st.integers(0, 2**32 - 1)), st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_tokens_are_those_of_a_loop(head, a, b):
    a, b = head + a, head + b
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    assert common_tokens(ids(a), ids(b)) == length


SYSTEM, HISTORY, DOCUMENT = fresh(40, 0), fresh(300, 1_000), fresh(120, 2_000)


@pytest.mark.parametrize("slot", [1, 3, 40])
@pytest.mark.parametrize("other", [1, 5])
def test_all_behind_a_changed_slot_stands_in_both(slot, other):
    before = SYSTEM + fresh(slot, 5_000) + HISTORY
    after = SYSTEM + fresh(other, 6_000) + HISTORY
    assert tokens_behind(ids(before), ids(after), len(SYSTEM)) == len(HISTORY)


def test_swapped_parts_stand_in_both():
    a, b, c = fresh(60, 0), fresh(90, 100), fresh(200, 300)
    assert tokens_behind(ids(a + b + c), ids(c + a + b), 0) == 350


def test_what_was_put_in_between_and_taken_out_does_not_stand_in_both():
    before = HISTORY + SYSTEM + DOCUMENT
    after = fresh(20, 9_000) + HISTORY + fresh(30, 8_000) + DOCUMENT + fresh(50, 7_000)
    assert tokens_behind(ids(before), ids(after), 0) == len(HISTORY) + len(DOCUMENT)


def test_a_token_of_the_reference_counts_once():
    assert tokens_behind(ids([*DOCUMENT, 1]), ids(DOCUMENT + DOCUMENT + [2]), 0) == len(DOCUMENT)


@pytest.mark.parametrize(("length", "counted"), [(RUN - 1, 0), (RUN, RUN)])
def test_short_runs_are_in_any_two_texts(length, counted):
    run = fresh(length, 100)
    assert tokens_behind(ids([1, *run, 2]), ids([3, *run, 4]), 0) == counted
    assert tokens_behind(ids([1, *run]), ids([3, *run]), 0) == counted


def test_short_runs_are_found_among_much_that_stands_in_one_prompt_only():
    runs = [fresh(RUN, 100 * number) for number in range(1, 6)]
    before = joined([*fresh(999, 10_000 * number), *run] for number, run in enumerate(runs, start=1))
    after = joined([*run, *fresh(777, 20_000 * number)] for number, run in enumerate(reversed(runs), start=10))
    assert tokens_behind(ids(before), ids(after), 0) == len(runs) * RUN


def test_only_what_stands_behind_the_start_counts():
    assert tokens_behind(ids(DOCUMENT + SYSTEM), ids(DOCUMENT + HISTORY), len(DOCUMENT)) == 0
    assert tokens_behind(ids(DOCUMENT), ids(SYSTEM + DOCUMENT), len(DOCUMENT) + 1) == 0


def test_no_text_is_hopeless():
    same = [5] * 100_000
    assert tokens_behind(ids([*same, 6]), ids([7, *same, 8]), 0) == len(same)
    periodic = tokens_behind(ids([1, 2, 3] * 30_000), ids([4] + [2, 3, 1] * 30_000), 0)
    assert 89_000 <= periodic <= 90_000
    long = list(range(150_000))
    assert tokens_behind(ids(long), ids(long[70_000:] + [0] * 9 + long[:70_000]), 0) >= 149_990


def in_runs(reference, prompt):
    """For each of the prompt's tokens whether it is in a run that the reference has."""
    runs = {tuple(reference[at : at + RUN]) for at in range(len(reference) - RUN + 1)}
    covered = [False] * len(prompt)
    for at in range(len(prompt) - RUN + 1):
        if tuple(prompt[at : at + RUN]) in runs:
            covered[at : at + RUN] = [True] * RUN
    return sum(covered)


PIECES = st.lists(st.sampled_from([[1], [2], [1, 2] * 6, fresh(9, 10), fresh(20, 30), fresh(40, 60)]), max_size=12)


@settings(max_examples=2 * settings.default.max_examples)
@given(PIECES, PIECES, st.integers(0, 40))
def test_never_more_than_a_slow_search_finds_nor_than_there_is(a, b, start):
    reference, prompt = joined(a), joined(b)
    counted = tokens_behind(ids(reference), ids(prompt), start)
    behind = reference[start:], prompt[start:]
    assert 0 <= counted <= min(len(behind[0]), in_runs(*behind))
    assert (counted > 0) == (in_runs(*behind) > 0)
    assert counted == tokens_behind(ids(reference), ids(prompt), start)


@given(st.permutations(range(6)), st.integers(RUN, 60))
def test_any_order_of_long_parts_is_found_whole(order, length):
    parts = [fresh(length, 1_000 * number) for number in range(6)]
    assert tokens_behind(ids(joined(parts)), ids(joined(parts[at] for at in order)), 0) == 6 * length


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_a_prompt_stands_in_itself(tokens):
    whole = ids(tokens)
    assert tokens_behind(whole, whole, 0) == (len(tokens) if len(tokens) >= RUN else 0)
