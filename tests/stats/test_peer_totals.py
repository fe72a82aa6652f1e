"""The figures of several journals as one."""

import zlib

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_requests import NOON, explanation, explanations, finished

from gateway.core.errors import BadRequest
from gateway.core.explanation import SpaceKey
from gateway.core.reasons import Reason
from gateway.stats import ComputePrice, Stats


def journals(*names: str, since: float = NOON - 5000) -> list[Stats]:
    return [Stats(since, price=ComputePrice(3.6), name=name.encode()) for name in names]


def reported(*others: Stats, now: float = NOON) -> list[bytes]:
    return [other.answer("figures", {}, now) for other in others]


def ask_all(journal: Stats, others, now: float = NOON, **arguments: str):
    return orjson.loads(journal.answer("summary", {"gateways": "all"} | arguments, now, others))


OWN = ("findings", "families", "gateways", "covered_seconds", "since")
"""What is reported of the gateway alone that was asked, or how it was put together."""


def figures_of(summary):
    figures = {name: value for name, value in summary.items() if name not in OWN}
    canonicalization = {name: value for name, value in figures["canonicalization"].items() if name != "suggestions"}
    return figures | {"canonicalization": canonicalization}


def close(one, other):
    """Equal but for the order in which fractions were added up."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other or (isinstance(one, float) and abs(one - other) < 2e-6 * max(1.0, abs(one)))


answered = st.lists(
    st.tuples(
        st.integers(0, 2),
        explanations,
        st.floats(0, 3600) | st.floats(0, 8 * 86400),
        st.sampled_from(["m", "n"]),
        st.sampled_from(["acme", "shop"]),
        st.sampled_from(["web", "mobile"]),
        st.floats(0.001, 20),
    ),
    max_size=20,
)


@given(answered, st.sampled_from(["15m", "1h", "24h", "7d"]), st.sampled_from([{}, {"tenant": "acme"}]))
def test_figures_of_all_are_those_of_one_that_answered_everything(requests, window, filters):
    several, (one,) = journals("a", "b", "c"), journals("one")
    # Oldest first, as requests end: a record much older than the newest one means that the clock was ahead before, and
    # takes the place of the newer bucket.
    requests.sort(key=lambda request: -request[2])
    for number, (which, explained, age, model, tenant, source, ttft) in enumerate(requests):
        fields = {"model": model, "tenant": tenant, "source": source, "ttft_seconds": ttft, "where": SpaceKey(model)}
        request = finished(f"r{number}", NOON - age, **fields)
        one.add(request, explained, 2)
        several[which].add(request, explained, 2)
    everything = ask_all(one, [], window=window, **filters)
    for asked in several:
        found = ask_all(asked, reported(*several), window=window, **filters)
        assert found["gateways"] == {"counted": 3, "missing": False}
        assert close(figures_of(found), figures_of(everything))


def test_only_its_own_figures_unless_all_are_asked_for():
    one, other = journals("one", "other")
    other.add(finished(), explanation(), 1)
    summary = orjson.loads(one.answer("summary", {}, NOON, reported(other)))
    assert summary["requests"] == 0
    assert "gateways" not in summary


def test_own_figures_are_counted_once():
    one, other = journals("one", "other")
    one.add(finished(), explanation(), 1)
    other.add(finished("r2"), explanation(), 1)
    assert ask_all(one, reported(one, other))["requests"] == 2


def test_they_begin_with_the_journal_that_is_there_for_longest():
    (one,), (other,) = journals("one", since=NOON - 10), journals("other", since=NOON - 300)
    assert ask_all(one, reported(other))["covered_seconds"] == 300
    assert ask_all(one, [])["covered_seconds"] == 10


def test_what_cannot_be_had_is_said():
    (one,) = journals("one")
    one.add(finished(), explanation(), 1)
    summary = ask_all(one, None)
    assert (summary["requests"], summary["gateways"]) == (1, {"counted": 1, "missing": True})


@pytest.mark.parametrize("data", [b"", b"nonsense", None])
def test_what_another_release_sends_is_left_out_and_said_to_be_missing(data):
    one, other = journals("one", "other")
    one.add(finished(), explanation(), 1)
    other.add(finished("r2"), explanation(), 1)
    if data is None:
        version, *rest = msgspec.msgpack.decode(reported(other)[0])
        data = msgspec.msgpack.encode((version + 1, *rest))
    assert ask_all(one, [data, *reported(other)])["gateways"] == {"counted": 2, "missing": True}


def test_what_is_found_is_what_the_asked_gateway_found():
    one, other = journals("one", "other")
    one.add(finished(), explanation(0, {Reason.EVICTED: 100, Reason.NEW_CONTENT: 100}), 1)
    other.add(finished("r2"), explanation(0, {Reason.EVICTED: 800}), 1)
    summary = ask_all(one, reported(other))
    (found,) = summary["findings"]
    assert (found["tokens"], found["share"]) == (100, 0.5)
    assert summary["prompt_tokens"] == 1000


def test_names_are_recorded_and_nothing_else_of_a_request():
    (one,) = journals("one")
    one.add(finished("a-request-id"), explanation(), 1)
    (data,) = reported(one)
    _, sender, content = msgspec.msgpack.decode(data)
    unpacked = zlib.decompress(content)
    assert b"acme" in unpacked
    for secret in (b"secret", b"a-request-id", b"k3v9"):
        assert secret not in unpacked
    assert sender == b"one"


def test_large_states_are_sent_in_few_bytes():
    (one,) = journals("one")
    for number in range(3000):
        fields = {"tenant": f"t{number % 20}", "source": f"s{number % 10}", "ttft_seconds": 0.01 * (number % 200)}
        one.add(finished(f"r{number}", NOON - number, **fields), explanation(), 1)
    assert len(reported(one)[0]) < 200_000


@pytest.mark.parametrize("value", ["own", "2", "ALL"])
def test_other_gateways_than_all_cannot_be_asked_for(value):
    (one,) = journals("one")
    with pytest.raises(BadRequest) as refused:
        one.answer("summary", {"gateways": value}, NOON)
    assert (refused.value.param, refused.value.code) == ("gateways", "invalid_value")
