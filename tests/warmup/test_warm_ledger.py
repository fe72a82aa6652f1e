"""What warm-up costs and what it saves, to the token."""

import pytest
from fake_gateway import WarmthCounts

from gateway.core.block_chain import BlockChain
from gateway.core.ids import ModelId, RequestId, Target
from gateway.core.ports import SettledPrompt
from gateway.core.request import ChatRequest, Endpoint
from gateway.warmup.lasting import HourlyBudget
from gateway.warmup.ledger import WarmCause, WarmLedger

HERE, THERE = Target("a"), Target("b")
COMMON = list(range(100, 110))
SECONDS = 0.001


@pytest.fixture
def counts():
    return WarmthCounts()


@pytest.fixture
def ledger(counts):
    return WarmLedger(lambda model: 2.0, counts)


def settled(ledger, hashes, *, reused=0, target=HERE, warm=False, name="r"):
    request = ChatRequest(
        Endpoint.CHAT,
        b"",
        b"",
        {},
        (),
        ModelId("m"),
        False,
        False,
        RequestId(name),
        None,
        0.0,
        warmup_target=target if warm else None,
    )
    chain = BlockChain(hashes, 16, 16 * len(hashes) + 4)
    ledger.on_prompt(SettledPrompt(request, b"", chain, target, reused, SECONDS, 0.0))


def warmed(ledger, hashes, *, cause=WarmCause.RESET, **more):
    ledger.begin(RequestId("w"), cause)
    settled(ledger, hashes, warm=True, name="w", **more)
    return ledger.end(RequestId("w"))


def test_it_costs_what_was_not_cached(ledger, counts):
    assert warmed(ledger, COMMON) == 164
    assert warmed(ledger, COMMON, reused=160) == 4
    assert counts.warmed == [("m", "reset", 164, pytest.approx(0.328)), ("m", "reset", 4, pytest.approx(0.008))]
    (shown,) = ledger.shown()
    assert (shown["cause"], shown["requests"], shown["prefill_tokens"]) == ("reset", 2, 168)
    assert shown["gpu_seconds"] == pytest.approx(0.336)


def test_the_first_use_of_each_block_is_saved_and_no_later_one(ledger, counts):
    warmed(ledger, COMMON)
    settled(ledger, [*COMMON[:6], 1, 2], reused=96)
    settled(ledger, [*COMMON[:6], 3], reused=96)
    settled(ledger, [*COMMON, 4], reused=160)
    settled(ledger, [*COMMON, 5], reused=160)
    assert [tokens for _, _, tokens, _ in counts.used] == [96, 64]
    assert sum(seconds for *_, seconds in counts.used) == pytest.approx(0.32)
    assert ledger.totals[WarmCause.RESET].saved_tokens == 160


def test_what_was_cached_before_is_no_saving(ledger, counts):
    warmed(ledger, COMMON, reused=64)
    settled(ledger, COMMON, reused=160)
    assert [tokens for _, _, tokens, _ in counts.used] == [96]


def test_what_a_client_had_to_compute_again_is_no_saving(ledger, counts):
    warmed(ledger, COMMON)
    settled(ledger, COMMON, reused=48)  # the rest was evicted
    settled(ledger, COMMON, reused=160)
    assert [tokens for _, _, tokens, _ in counts.used] == [48]


def test_another_replica_or_another_prompt_saves_nothing(ledger, counts):
    warmed(ledger, COMMON)
    settled(ledger, COMMON, reused=160, target=THERE)
    settled(ledger, list(range(10)), reused=160)
    assert counts.used == []


def test_a_request_that_no_replica_computed_costs_nothing(ledger):
    ledger.begin(RequestId("w"), WarmCause.IDLE)
    assert ledger.end(RequestId("w")) == 0
    assert list(ledger.shown()) == []


def test_thousands_of_warmed_prefixes_take_bounded_memory(ledger, counts):
    for number in range(5000):
        warmed(ledger, [number * 100 + block for block in range(4)])
    assert len(ledger._filled[HERE]) <= 64
    settled(ledger, [499_900, 499_901, 499_902, 499_903], reused=64)
    assert [tokens for _, _, tokens, _ in counts.used] == [64]


class TestBudget:
    def test_tokens_and_requests_of_any_hour(self):
        budget = HourlyBudget(tokens=100, requests=2)
        assert budget.spend(60, 0.0)
        assert budget.spend(60, 1.0) is None
        assert budget.spend(40, 2.0)
        assert budget.spend(0, 3.0) is None
        assert budget.used(4.0) == (100, 2)
        assert budget.used(3600.0) == (40, 1)
        assert budget.spend(60, 3601.0)

    def test_what_was_not_computed_is_given_back(self):
        budget = HourlyBudget(tokens=100, requests=10)
        expense = budget.spend(100, 0.0)
        budget.correct(expense, 4, 1.0)
        assert budget.used(1.0) == (4, 1)
        budget.correct(expense, 0, 4000.0)
        assert budget.used(4000.0) == (0, 0)


def test_clients_prompts_are_awaited_while_something_warmed_is_unused(ledger):
    assert not ledger.awaits_clients
    warmed(ledger, COMMON)
    assert ledger.awaits_clients
    warmed(ledger, COMMON, target=THERE)
    settled(ledger, COMMON, reused=160)
    assert ledger.awaits_clients
    settled(ledger, COMMON, reused=160, target=THERE)
    assert not ledger.awaits_clients
