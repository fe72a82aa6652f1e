"""The limits of a tenant: what is refused, what the client gets, and that nothing leaks out of them."""

import pytest
from admission_setup import AdmissionSetup
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.api_keys import hash_key, new_key
from gateway.core.errors import RateLimited


def headers_of(grant, now):
    return {name.decode(): value.decode() for name, value in grant.headers(now)}


# Requests a second


@pytest.mark.parametrize(
    ("rate", "count", "seconds"),
    [(1, 1, 1), (50, 50, 1), (2.5, 2, 0.8), (0.5, 1, 2), (1.99, 1, 1 / 1.99), (0.1, 1, 10)],
)
def test_a_rate_is_whole_requests_in_the_time_they_take(key, acme, rate, count, seconds):
    setup = AdmissionSetup([acme(requests_per_second=rate)])
    for _ in range(count):
        setup.admit(key).release()
    assert isinstance(setup.refusal(key), RateLimited)
    setup.now += seconds * 0.999
    assert isinstance(setup.refusal(key), RateLimited)
    setup.now += seconds * 0.0011
    for _ in range(count):
        setup.admit(key).release()
    assert isinstance(setup.refusal(key), RateLimited)


def test_too_many_requests_a_second_get_a_retry_time(key, acme):
    setup = AdmissionSetup([acme(requests_per_second=2)])
    setup.admit(key)
    setup.now += 0.75
    setup.admit(key)
    error = setup.refusal(key)
    assert isinstance(error, RateLimited)
    assert (error.status, error.type, error.code, error.param) == (429, "requests", "rate_limit_exceeded", None)
    assert error.message == (
        "Rate limit reached: tenant acme may send 2 requests a second (requests_per_second). Try again in 250ms."
    )
    assert error.retry_after_seconds == 1  # whole seconds, for clients that know nothing finer
    assert dict(error.headers) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1s",
        "retry-after-ms": "250",
    }
    assert error.caller is not None
    assert error.caller.tenant.id == "acme"


def test_a_retry_at_the_announced_time_passes(key, acme):
    setup = AdmissionSetup([acme(requests_per_second=1.1)])
    for part in range(1, 200):
        setup.admit(key).release()
        setup.now += part / 1100  # so that the rest is a whole number of milliseconds but for the error of floats
        setup.now += int(dict(setup.refusal(key).headers)["retry-after-ms"]) / 1000


# Running at once


def test_too_many_requests_at_once_wait_for_one_to_end(key, acme):
    setup = AdmissionSetup([acme(concurrent=2)])
    first, _ = setup.admit(key), setup.admit(key)
    error = setup.refusal(key)
    assert isinstance(error, RateLimited)
    assert (error.status, error.type, error.code) == (429, "requests", "rate_limit_exceeded")
    assert error.message == (
        "Rate limit reached: tenant acme may have 2 requests running at once (concurrent), and has. Try again when one "
        "of them is over."
    )
    assert error.retry_after_seconds == 1
    assert dict(error.headers)["retry-after-ms"] == "1000"
    first.release()
    setup.admit(key)
    assert isinstance(setup.refusal(key), RateLimited)


def test_a_request_ends_once_however_often_it_is_released(key, acme):
    setup = AdmissionSetup([acme(concurrent=1)])
    first = setup.admit(key)
    for _ in range(3):
        first.release()
    second = setup.admit(key)
    first.release()
    assert isinstance(setup.refusal(key), RateLimited)
    second.release()
    setup.admit(key)


def test_all_keys_of_a_tenant_share_its_limits_and_no_other_tenant_does():
    one, two, other = new_key(), new_key(), new_key()
    limits = {"concurrent": 1}
    setup = AdmissionSetup(
        [
            {"id": "a", "keys": [hash_key(one), hash_key(two)]} | limits,
            {"id": "b", "group": "g", "keys": [hash_key(other)]} | limits,
        ]
    )
    setup.admit(one)
    assert isinstance(setup.refusal(two), RateLimited)
    setup.admit(other)


# Prompt tokens a minute


def test_too_many_prompt_tokens_get_the_time_at_which_they_fit(key, acme):
    setup = AdmissionSetup([acme(prompt_tokens_per_minute=1000)])
    setup.admit(key).charge(700, setup.now)
    setup.now += 18
    setup.admit(key).charge(200, setup.now)
    with pytest.raises(RateLimited) as caught:
        setup.admit(key).charge(101, setup.now)
    error = caught.value
    assert (error.status, error.type, error.code) == (429, "tokens", "rate_limit_exceeded")
    assert error.message == (
        "Rate limit reached: tenant acme may send 1000 prompt tokens a minute (prompt_tokens_per_minute), 100 are "
        "left, and the prompt has 101. Try again in 42s."
    )
    assert error.retry_after_seconds == 42
    assert dict(error.headers) == {
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "1m0s",
        "retry-after-ms": "42000",
    }
    setup.admit(key).charge(100, setup.now)
    setup.now += 42
    setup.admit(key).charge(700, setup.now)


def test_a_prompt_above_the_whole_limit_is_refused_without_a_retry_time(key, acme):
    setup = AdmissionSetup([acme(prompt_tokens_per_minute=1000)])
    grant = setup.admit(key)
    with pytest.raises(RateLimited) as caught:
        grant.charge(1001, setup.now)
    error = caught.value
    assert (error.type, error.code, error.retry_after_seconds) == ("tokens", "rate_limit_exceeded", None)
    assert error.message == (
        "Rate limit reached: the prompt has 1001 tokens, and tenant acme may send 1000 a minute "
        "(prompt_tokens_per_minute), so it can never pass. Send a shorter one."
    )
    assert dict(error.headers)["x-should-retry"] == "false"
    assert "retry-after-ms" not in dict(error.headers)
    setup.admit(key).charge(1000, setup.now)


@pytest.mark.parametrize(("counted", "left"), [(0, 1000), (100, 900), (400, 600), (1500, 0), (-5, 1000)])
def test_the_engines_count_takes_the_place_of_what_was_charged(key, acme, counted, left):
    setup = AdmissionSetup([acme(prompt_tokens_per_minute=1000)])
    grant = setup.admit(key)
    grant.charge(300, setup.now)
    setup.now += 5
    grant.correct(counted)
    assert headers_of(grant, setup.now)["x-ratelimit-remaining-tokens"] == str(left)
    # and it ends a minute after it was charged, with nothing left over
    setup.now += 55
    assert headers_of(grant, setup.now)["x-ratelimit-remaining-tokens"] == "1000"


def test_what_was_never_charged_is_not_given_back(key, acme):
    setup = AdmissionSetup([acme(prompt_tokens_per_minute=1000)])
    other, refused, uncharged = (setup.admit(key) for _ in range(3))
    other.charge(900, setup.now)
    with pytest.raises(RateLimited):
        refused.charge(200, setup.now)
    refused.correct(0)
    uncharged.correct(0)
    assert headers_of(other, setup.now)["x-ratelimit-remaining-tokens"] == "100"
    setup.now += 61
    other.correct(0)  # long after its minute
    assert headers_of(other, setup.now)["x-ratelimit-remaining-tokens"] == "1000"


# Together


def test_a_refused_request_takes_nothing_from_any_limit(key, acme):
    limits = {"requests_per_second": 3, "concurrent": 2, "prompt_tokens_per_minute": 100}
    setup = AdmissionSetup([acme(**limits)])
    running = setup.admit(key), setup.admit(key)
    for _ in range(50):
        assert "concurrent" in setup.refusal(key).message
    running[0].release()
    for _ in range(3):  # for its tokens: it is not counted as a request of this second either
        grant = setup.admit(key)
        with pytest.raises(RateLimited):
            grant.charge(101, setup.now)
        assert headers_of(grant, setup.now)["x-ratelimit-remaining-requests"] == "1"
        grant.release()
    running[1].release()
    setup.now += 1
    for _ in range(3):
        setup.admit(key).release()
    for _ in range(50):
        assert "requests_per_second" in setup.refusal(key).message
    setup.now += 1
    assert headers_of(setup.admit(key), setup.now) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "2",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "100",
        "x-ratelimit-reset-tokens": "0s",
    }


@pytest.mark.parametrize(
    ("rate", "count", "seconds", "limit"),
    [
        (2, 2, 1, "2 requests refused in 1s (requests_per_second)"),
        (50, 50, 1, "50 requests refused in 1s (requests_per_second)"),
        (0.01, 5, 5, "5 requests refused in 5s (requests_per_second)"),
        (None, 5, 5, "5 requests refused in 5s (prompt_tokens_per_minute)"),
    ],
)
def test_refused_requests_are_limited_apart_from_others(key, acme, rate, count, seconds, limit):
    setup = AdmissionSetup([acme(requests_per_second=rate, prompt_tokens_per_minute=100)])

    def refused_for_its_tokens():
        grant = setup.admit(key)
        with pytest.raises(RateLimited):
            grant.charge(101, setup.now)
        grant.refuse(setup.now)  # as for every refusal: it counts once
        grant.release()

    for _ in range(count):
        refused_for_its_tokens()
    error = setup.refusal(key)
    assert limit in error.message
    assert dict(error.headers)["retry-after-ms"] == str(1000 * seconds)
    setup.now += seconds * 0.999
    assert limit in setup.refusal(key).message
    setup.now += seconds * 0.0011
    refused_for_its_tokens()
    setup.admit(key).charge(100, setup.now)  # what was refused has used up nothing


def test_a_refusal_for_its_content_counts_as_a_request_or_as_refused(key, acme):
    limits = {"requests_per_second": 5, "prompt_tokens_per_minute": 100}
    setup = AdmissionSetup([acme(**limits)])
    setup.admit(key).refuse(setup.now)
    assert headers_of(setup.admit(key), setup.now)["x-ratelimit-remaining-requests"] == "3"
    setup = AdmissionSetup([acme(prompt_tokens_per_minute=100)])
    for _ in range(5):
        grant = setup.admit(key)
        grant.charge(100, setup.now)
        grant.refuse(setup.now)
    assert "5 requests refused" in setup.refusal(key).message
    setup = AdmissionSetup([acme(concurrent=1)])
    for _ in range(50):
        grant = setup.admit(key)
        grant.refuse(setup.now)
        grant.release()


def test_without_a_token_left_a_request_is_refused_at_once(key, acme):
    setup = AdmissionSetup([acme(requests_per_second=5, prompt_tokens_per_minute=100)])
    setup.admit(key).charge(100, setup.now)
    setup.now += 18
    for _ in range(50):
        error = setup.refusal(key)
    assert "100 prompt tokens a minute (prompt_tokens_per_minute), and 0 are left. Try again in 42s." in error.message
    assert (error.type, error.retry_after_seconds) == ("tokens", 42)
    setup.now += 42
    setup.admit(key).charge(100, setup.now)


def test_the_longest_wait_is_named(key, acme):
    setup = AdmissionSetup([acme(requests_per_second=1, prompt_tokens_per_minute=100)])
    setup.admit(key).charge(100, setup.now)
    assert setup.refusal(key).retry_after_seconds == 60


def test_one_report_of_an_engine_uses_up_no_more_than_a_minutes_tokens(key, acme):
    setup = AdmissionSetup([acme(prompt_tokens_per_minute=1000)])
    grant = setup.admit(key)
    grant.charge(300, setup.now)
    grant.correct(10**12)
    setup.now += 30
    assert setup.refusal(key).retry_after_seconds == 30
    setup.now += 30
    setup.admit(key).charge(1000, setup.now)


def test_asking_who_it_is_takes_nothing(key, acme):
    setup = AdmissionSetup([acme(requests_per_second=1, concurrent=1)])
    for _ in range(10):
        setup.caller(key)
    setup.admit(key)


def test_a_tenant_without_limits_is_never_refused_and_gets_no_headers(key, acme):
    setup = AdmissionSetup([acme()])
    grants = [setup.admit(key) for _ in range(1000)]
    for grant in grants:
        grant.charge(10**9, setup.now)
        grant.correct(1)
        assert list(grant.headers(setup.now)) == []


def test_a_limit_on_running_requests_alone_gives_no_headers(key, acme):
    assert list(AdmissionSetup([acme(concurrent=5)]).admit(key).headers(1000.0)) == []


@pytest.mark.parametrize(
    ("rate", "reset"),
    [
        (1, "1s"),
        (50, "1s"),
        (8, "1s"),
        (0.5, "2s"),
        (2.5, "800ms"),
        (0.4, "2.5s"),
        (0.01, "1m40s"),
        (0.0002, "1h23m20s"),
    ],
)
def test_times_are_written_as_openai_writes_them(key, acme, rate, reset):
    setup = AdmissionSetup([acme(requests_per_second=rate)])
    assert headers_of(setup.admit(key), setup.now)["x-ratelimit-reset-requests"] == reset


def test_limits_of_the_default_tenant_hold_in_open_mode():
    setup = AdmissionSetup([{"id": "default", "concurrent": 1}])
    setup.admit("any")
    assert isinstance(setup.refusal("another"), RateLimited)


@given(
    st.lists(
        st.tuples(st.sampled_from(["admit", "charge", "refuse", "correct", "release", "wait"]), st.integers(0, 60)),
        max_size=200,
    )
)
def test_running_requests_and_tokens_always_add_up(steps):
    """Against a model that keeps every request: nothing is ever counted twice, lost, or given back twice."""
    key = new_key()
    limits = {"requests_per_second": 10, "concurrent": 4, "prompt_tokens_per_minute": 100}
    setup = AdmissionSetup([{"id": "a", "keys": [hash_key(key)]} | limits])
    open_grants, all_grants, times, refusals = [], [], {}, []
    for step, number in steps:
        match step:
            case "admit":
                recent = sum(time + 1 > setup.now for time in times.values())
                refused = sum(time + 1 > setup.now for time in refusals)
                left = headers_of(all_grants[-1], setup.now)["x-ratelimit-remaining-tokens"] if all_grants else "1"
                if len(open_grants) < 4 and recent < 10 and refused < 10 and left != "0":
                    grant = setup.admit(key)
                    open_grants.append(grant)
                    all_grants.append(grant)
                    times[grant] = setup.now
                else:
                    assert isinstance(setup.refusal(key), RateLimited)
            case "charge" if open_grants:
                try:
                    open_grants[-1].charge(number, setup.now)
                except RateLimited:
                    if times.pop(open_grants[-1], None) is not None:
                        refusals.append(setup.now)
            case "refuse" if open_grants:
                with pytest.raises(RateLimited):
                    open_grants[-1].charge(101, setup.now)
                if times.pop(open_grants[-1], None) is not None:
                    refusals.append(setup.now)
            case "correct" if all_grants:
                all_grants[number % len(all_grants)].correct(number // 2)
            case "release" if all_grants:
                grant = all_grants[number % len(all_grants)]
                grant.release()
                if grant in open_grants:
                    open_grants.remove(grant)
            case "wait":
                setup.now += number / 20
        if all_grants:
            shown = headers_of(all_grants[-1], setup.now)
            assert int(shown["x-ratelimit-remaining-requests"]) == 10 - sum(
                time + 1 > setup.now for time in times.values()
            )
            assert 0 <= int(shown["x-ratelimit-remaining-tokens"]) <= 100
    for grant in all_grants:
        grant.release()
    setup.now += 61
    for _ in range(4):
        setup.admit(key)
