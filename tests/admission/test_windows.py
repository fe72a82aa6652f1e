"""The sliding windows, against a plain list of all that ever happened."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission.sliding_windows import RequestWindow, TokenWindow

PAUSES = st.lists(st.floats(0, 1.5) | st.sampled_from([0.0, 0.001, 0.1, 0.25, 0.5, 1.0]), min_size=1, max_size=120)


@given(st.integers(1, 6), st.sampled_from([0.3, 0.8, 1.0, 2.0]), PAUSES, st.floats(0, 1e6))
def test_never_more_requests_than_the_limit_in_any_window(count, period, pauses, start):
    window = RequestWindow(count, period)
    now, admitted = start, []
    for pause in pauses:
        now += pause
        in_window = sum(time + period > now for time in admitted)
        wait = window.wait_seconds(now)
        assert window.remaining(now)[0] == count - in_window
        # exact: refused only if it would be one too many
        assert (wait > 0) == (in_window == count)
        if not wait:
            window.admit(now)
            admitted.append(now)
    for first in admitted:
        assert sum(first <= time < first + period for time in admitted) <= count


@given(st.integers(1, 5), PAUSES)
def test_a_request_is_admitted_after_the_sent_wait_and_not_earlier(count, pauses):
    window, now = RequestWindow(count, 1.0), 0.0
    for pause in pauses:
        now += pause / 4
        if wait := window.wait_seconds(now):
            assert window.wait_seconds(now + wait * 0.99) > 0
            now += wait + 1e-9
        assert window.wait_seconds(now) == 0
        window.admit(now)


def test_a_burst_at_the_turn_of_a_second_is_no_way_to_twice_the_limit():
    window = RequestWindow(10, 1.0)
    for number in range(10):
        assert window.wait_seconds(0.9 + number / 1000) == 0
        window.admit(0.9 + number / 1000)
    assert window.wait_seconds(1.0) == pytest.approx(0.9)
    assert window.wait_seconds(1.89) == pytest.approx(0.01)
    assert window.wait_seconds(1.9) == 0


def test_what_is_taken_back_does_not_count():
    window = RequestWindow(2, 1.0)
    window.admit(0.0)
    window.admit(0.5)
    window.take_back(0.5)
    window.take_back(0.5)
    window.take_back(0.3)
    assert window.remaining(0.6) == (1, pytest.approx(0.4))
    window.take_back(0.0)
    assert window.remaining(0.6) == (2, 0.0)
    window.take_back(-5.0)
    assert window.remaining(0.6) == (2, 0.0)


def test_a_changed_limit_counts_what_was_admitted_before():
    window = RequestWindow(3, 1.0)
    for now in (0.0, 0.1, 0.2):
        window.admit(now)
    window.change(1, 1.0)
    assert window.wait_seconds(0.3) == pytest.approx(0.9)  # until the last of the three is gone
    window.change(4, 1.0)
    assert window.remaining(0.3)[0] == 1
    window.change(3, 2.0)
    assert window.wait_seconds(1.05) == pytest.approx(0.95)


@given(
    st.lists(
        st.tuples(st.floats(0, 20) | st.sampled_from([0.0, 0.1, 0.2499, 0.25, 59.9]), st.integers(0, 120)), max_size=150
    )
)
def test_never_more_tokens_than_the_limit_in_any_minute(steps):
    limit, moment = 100, TokenWindow.MOMENT_SECONDS
    window, now, taken = TokenWindow(limit), 0.0, []
    for pause, tokens in steps:
        now += pause
        in_minute = sum(count for time, count in taken if time + 60 > now)
        in_longer = sum(count for time, count in taken if time + 60 + moment > now)
        left, reset = window.remaining(now)
        assert limit - in_longer <= left <= limit - in_minute
        assert reset <= 60 + 1e-9
        if tokens > limit:
            continue
        wait = window.wait_seconds(tokens, now)
        if not wait:
            window.charge(tokens, now)
            taken.append((now, tokens))
        else:
            assert in_longer + tokens > limit
    for first, _ in taken:
        assert sum(count for time, count in taken if first <= time < first + 60) <= limit


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 100)), min_size=1, max_size=60))
def test_tokens_fit_after_the_wait_that_was_sent(steps):
    window, now = TokenWindow(100), 0.0
    for pause, tokens in steps:
        now += pause
        if wait := window.wait_seconds(tokens, now):
            assert window.wait_seconds(tokens, now + wait * 0.999) > 0
            now += wait + 1e-9
        assert window.wait_seconds(tokens, now) == 0
        window.charge(tokens, now)


@given(
    st.lists(
        st.tuples(st.floats(0, 30), st.integers(0, 50), st.integers(0, 200), st.booleans()), min_size=1, max_size=60
    )
)
def test_after_every_correction_what_counts_is_what_the_engine_counted(steps):
    """Charges are corrected some steps later; a minute after the last, nothing is left over and nothing is owed."""
    window, now, pending = TokenWindow(10_000), 0.0, []
    actual = []
    for pause, charged, counted, at_once in steps:
        now += pause
        window.remaining(now)
        pending.append((window.charge(charged, now), charged, counted, len(actual)))
        actual.append([now, charged])
        if at_once:
            for charge, before, after, position in pending:
                window.correct(charge, after - before)
                actual[position][1] = after
            pending.clear()
        used = 10_000 - window.remaining(now)[0]
        assert sum(count for time, count in actual if time + 60 > now) <= used
        assert used <= sum(count for time, count in actual if time + 60.25 > now)
    assert window.remaining(now + 61) == (10_000, 0.0)
    for charge, before, after, _ in pending:  # over a minute late: it does not count any more
        window.correct(charge, after - before)
    assert window.remaining(now + 61) == (10_000, 0.0)


def test_more_tokens_than_charged_may_go_beyond_the_limit_and_the_next_wait_for_it():
    window = TokenWindow(100)
    charge = window.charge(60, 0.0)
    window.correct(charge, 200)
    assert window.remaining(1.0)[0] == 0
    assert window.wait_seconds(1, 1.0) == pytest.approx(59.0)
    assert window.wait_seconds(100, 60.0) == 0


def test_tokens_kept_as_one_count_until_the_last_of_them_is_a_minute_old():
    window = TokenWindow(100)
    window.charge(10, 0.0)
    window.charge(90, 0.2)
    assert window.remaining(60.1) == (0, pytest.approx(0.1))
    assert window.remaining(60.2) == (100, 0.0)


def test_a_steady_stream_does_not_keep_its_own_beginning_counted():
    window = TokenWindow(1000)
    for number in range(300):  # one token every 0.2 seconds, for a minute
        window.charge(1, number / 5)
    assert window.remaining(60.5)[0] >= 1000 - 300 + 2
    assert window.remaining(90.0)[0] >= 1000 - 150


def test_memory_is_bounded_however_many_charges_come():
    window = TokenWindow(10**9)
    for number in range(100_000):
        window.remaining(number / 500)
        window.charge(1, number / 500)
    assert len(window._charges) <= 60 / TokenWindow.MOMENT_SECONDS + 2


def test_windows_keep_nothing_older_than_themselves_where_others_alone_take_from_them():
    requests, tokens = RequestWindow(5, 1.0), TokenWindow(1000)
    for second in range(0, 10_000, 2):
        requests.admit(float(second))
        tokens.charge(3, float(second))
    assert len(pickle.dumps(requests)) < 1000
    assert len(pickle.dumps(tokens)) < 5000
    assert requests.remaining(9998.5)[0] == 4
    assert tokens.remaining(9998.5)[0] == 1000 - 30 * 3
