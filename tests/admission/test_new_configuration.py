"""The configuration changes while requests run."""

import contextlib

import pytest
from admission_setup import AdmissionSetup
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.api_keys import hash_key, new_key
from gateway.core.errors import RateLimited, Unauthorized

PROXY = "10.0.0.7"


def test_the_next_request_meets_the_new_keys(key, acme):
    other = new_key()
    setup = AdmissionSetup([acme()])
    setup.replace([{"id": "acme", "keys": [hash_key(other)]}])
    assert isinstance(setup.refusal(key), Unauthorized)
    assert setup.admit(other).caller.tenant.id == "acme"


def test_a_tenant_that_stays_keeps_what_it_has_taken(key, acme):
    limits = {"requests_per_second": 2, "concurrent": 5, "prompt_tokens_per_minute": 100}
    setup = AdmissionSetup([acme(**limits)])
    running = setup.admit(key)
    running.charge(80, setup.now)
    setup.replace([acme(group="new", **limits), {"id": "beta", "keys": [hash_key(new_key())]}])
    last = setup.admit(key)
    assert last.caller.tenant.group == "new"
    assert "requests_per_second" in setup.refusal(key).message
    with pytest.raises(RateLimited, match="20 are left"):
        last.charge(21, setup.now)
    running.correct(10)
    last.charge(90, setup.now)


def test_requests_that_run_are_counted_under_the_new_limit(key, acme):
    setup = AdmissionSetup([acme(concurrent=3)])
    running = [setup.admit(key) for _ in range(3)]
    setup.replace([acme(concurrent=1)])
    for grant in running:
        assert "may have 1 request running" in setup.refusal(key).message
        grant.release()
    setup.admit(key)


def test_tokens_taken_before_count_against_the_new_limit(key, acme):
    setup = AdmissionSetup([acme(prompt_tokens_per_minute=100)])
    setup.admit(key).charge(80, setup.now)
    setup.replace([acme(prompt_tokens_per_minute=200)])
    grant = setup.admit(key)
    assert dict(grant.headers(setup.now))[b"x-ratelimit-limit-tokens"] == b"200"
    grant.charge(120, setup.now)
    setup.replace([acme(prompt_tokens_per_minute=50)])
    with pytest.raises(RateLimited, match="may send 50 prompt tokens a minute"):
        setup.admit(key).charge(1, setup.now)
    setup.now += 60
    setup.admit(key).charge(50, setup.now)


def test_a_limit_may_come_go_and_come_back_while_requests_run(key, acme):
    everything = {"requests_per_second": 1, "concurrent": 1, "prompt_tokens_per_minute": 10}
    setup = AdmissionSetup([acme()])
    first = setup.admit(key)
    first.charge(1000, setup.now)
    setup.replace([acme(**everything)])
    assert "concurrent" in setup.refusal(key).message  # what runs is known without a limit, too
    first.correct(5)
    first.release()
    second = setup.admit(key)
    second.charge(10, setup.now)
    setup.replace([acme()])
    setup.admit(key).release()
    second.correct(0)
    second.release()
    assert list(second.headers(setup.now)) == []
    setup.replace([acme(**everything)])
    third = setup.admit(key)
    third.charge(10, setup.now)
    first.release()
    second.release()
    assert "concurrent" in setup.refusal(key).message


def test_requests_of_a_tenant_that_is_gone_end_in_peace(key, acme):
    setup = AdmissionSetup([acme(concurrent=1, prompt_tokens_per_minute=10)])
    grant = setup.admit(key)
    setup.replace([{"id": "beta", "keys": [hash_key(new_key())]}])
    grant.charge(5, setup.now)
    grant.correct(3)
    assert grant.caller.tenant.id == "acme"
    grant.release()
    grant.release()


def test_a_tenant_that_comes_back_finds_its_running_requests_counted(key, acme):
    setup = AdmissionSetup([acme(concurrent=2)])
    running = [setup.admit(key) for _ in range(2)]
    for tenants in ([{"id": "beta", "keys": [hash_key(new_key())]}], [acme(concurrent=2)]):
        setup.replace(tenants)
    assert "concurrent" in setup.refusal(key).message
    running[0].release()
    setup.admit(key)


def test_a_tenant_keeps_what_it_has_taken_when_it_gets_or_loses_its_own_entry():
    limits = {"concurrent": 1, "requests_per_second": 1}
    unlisted, listed = [{"id": "*"} | limits], [{"id": "*"} | limits, {"id": "acme"} | limits]
    setup = AdmissionSetup(unlisted, trusted_proxies=[PROXY])

    def admit():
        return setup.admit(peer=PROXY, x_tenant_id="acme")

    def refused():
        return setup.refusal(peer=PROXY, x_tenant_id="acme").message

    running = admit()
    for tenants in (listed, unlisted, listed, unlisted):
        setup.replace(tenants, trusted_proxies=[PROXY])
        assert "concurrent" in refused()
    running.release()
    for tenants in (listed, unlisted, listed):
        assert "requests_per_second" in refused()
        setup.replace(tenants, trusted_proxies=[PROXY])
    setup.now += 1
    admit().release()
    setup.replace(unlisted, trusted_proxies=[PROXY])
    assert "requests_per_second" in refused()


def test_the_default_tenant_counts_from_before_it_had_an_entry():
    setup = AdmissionSetup([])
    running = setup.admit()
    setup.replace([])
    setup.replace([{"id": "default", "concurrent": 1}])
    assert "concurrent" in setup.refusal().message
    running.release()
    setup.admit()


@given(
    st.lists(
        st.sampled_from(["admit a", "admit b", "release", "listed", "unlisted", "fewer", "none", "later"]), max_size=80
    )
)
def test_no_running_request_of_a_tenant_that_stays_is_lost_by_any_change(steps):
    """`*` or an entry of its own stands for ``a`` in all configurations; ``b`` comes and goes."""
    configurations = {
        "listed": [{"id": "a", "concurrent": 3}, {"id": "b", "concurrent": 3}],
        "unlisted": [{"id": "*", "concurrent": 3}],
        "fewer": [{"id": "a", "concurrent": 1, "requests_per_second": 1000}],
        "none": [{"id": "a"}, {"id": "*"}],
    }
    setup, most = AdmissionSetup(configurations["listed"], trusted_proxies=[PROXY]), 3
    running = []
    for step in steps:
        if step in configurations:
            setup.replace(configurations[step], trusted_proxies=[PROXY])
            most = {"fewer": 1, "none": 1000}.get(step, 3)
        elif step == "admit a":
            if len(running) < most:
                running.append(setup.admit(peer=PROXY, x_tenant_id="a"))
            else:
                assert isinstance(setup.refusal(peer=PROXY, x_tenant_id="a"), RateLimited)
        elif step == "admit b" and most != 1:
            with contextlib.suppress(RateLimited):
                setup.admit(peer=PROXY, x_tenant_id="b")
        elif step == "release" and running:
            grant = running.pop(0)
            grant.release()
            grant.release()
        elif step == "later":
            setup.now += 100
