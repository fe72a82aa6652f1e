"""Limits of tenants that only a trusted proxy names: as good as any, and bounded in number."""

from admission_setup import AdmissionSetup

from gateway.admission.tenant_limits import MAX_UNLISTED, AllLimits, Limits
from gateway.core.errors import RateLimited

PROXY = "10.0.0.7"


def setup(**limits):
    return AdmissionSetup([{"id": "acme"}, {"id": "*"} | limits], trusted_proxies=[PROXY])


def admitted(limits, name, now=0.0):
    try:
        return limits.admit(name, now)
    except RateLimited:
        return None


def test_each_of_them_has_limits_of_its_own():
    gate = setup(requests_per_second=1)
    for name in ("a", "b", "default", "other"):
        gate.admit(peer=PROXY, x_tenant_id=name)
        error = gate.refusal(peer=PROXY, x_tenant_id=name)
        assert isinstance(error, RateLimited)
        assert f"tenant {name} may send 1 request a second" in error.message
        assert error.caller is not None
        assert error.caller.tenant.label == "other"
    for _ in range(5):
        gate.admit(peer=PROXY, x_tenant_id="acme")


def test_a_tenant_between_two_requests_is_not_forgotten():
    gate = setup(requests_per_second=1, prompt_tokens_per_minute=100)
    first = gate.admit(peer=PROXY, x_tenant_id="a")
    first.charge(80, gate.now)
    first.release()
    gate.admit(peer=PROXY, x_tenant_id="b").release()
    assert isinstance(gate.refusal(peer=PROXY, x_tenant_id="a"), RateLimited)
    gate.now += 1
    assert (b"x-ratelimit-remaining-tokens", b"20") in gate.admit(peer=PROXY, x_tenant_id="a").headers(gate.now)


def test_of_those_at_rest_the_one_unseen_for_longest_is_forgotten():
    limits = AllLimits({}, Limits(requests_per_second=1), max_unlisted=3)
    for name in ("a", "b", "c"):
        limits.release(name, admitted(limits, name))
    assert admitted(limits, "a") is None  # refused, but seen
    limits.release("d", admitted(limits, "d"))
    assert admitted(limits, "a") is None
    assert admitted(limits, "c") is None
    assert admitted(limits, "b") is not None


def test_one_with_a_request_running_is_never_forgotten():
    limits = AllLimits({}, Limits(concurrent=1), max_unlisted=2)
    running = admitted(limits, "a")
    for number in range(100):
        limits.release(f"t{number}", admitted(limits, f"t{number}"))
    assert admitted(limits, "a") is None
    limits.release("a", running)
    assert admitted(limits, "a") is not None


def test_one_with_a_request_running_is_never_forgotten_after_a_change_either():
    limits = AllLimits({}, Limits(concurrent=1), max_unlisted=2)
    running = admitted(limits, "a")
    limits.replace({}, Limits(concurrent=1))
    for number in range(100):
        limits.release(f"t{number}", admitted(limits, f"t{number}"))
    assert admitted(limits, "a") is None
    limits.release("a", running)
    assert admitted(limits, "a") is not None


def test_more_may_run_at_once_than_are_remembered_at_rest():
    limits = AllLimits({}, Limits(concurrent=1), max_unlisted=2)
    running = {f"t{number}": admitted(limits, f"t{number}") for number in range(50)}
    assert all(admitted(limits, name) is None for name in running)
    for name, state in running.items():
        limits.release(name, state)
    assert all(admitted(limits, name) is not None for name in running)


def test_a_flood_of_names_takes_bounded_memory():
    gate = setup(requests_per_second=1)
    for number in range(MAX_UNLISTED + 500):
        gate.admit(peer=PROXY, x_tenant_id=f"t{number}").release()
    limits = gate.gate._limits
    assert len(limits._idle) == MAX_UNLISTED
    assert not limits._busy
