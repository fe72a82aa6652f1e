"""What the gateway records that was answered."""

from types import SimpleNamespace

import pytest

from gateway.context import Encoded, Placed, RequestContext, Served, ServedModel
from gateway.core.decision import Decision, DecisionKind
from gateway.core.engine_facts import EngineFacts
from gateway.core.ids import ModelId, ReplicaId, RequestId, Target
from gateway.core.outcome import Ending, Outcome, Usage
from gateway.core.prompt import TokenizedPrompt, TokenSource
from gateway.core.replica_state import Rates
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.space import SpaceGrant
from gateway.request_record import opening_and_turn, request_record, settlement

PEER = "203.0.113.9"
RATES = Rates(0.01, 0.001, 0.02, 2.0)
REPLICA = SimpleNamespace(facts=EngineFacts(), usage_details=True, speed=SimpleNamespace(rates=RATES))


def received(*stages, stream=False):
    """A request that arrived at 10 s."""
    request = ChatRequest(
        Endpoint.CHAT, b"", b"{}", {}, [], ModelId("m"), stream, False, RequestId("r"), None, 10.0, peer=PEER
    )
    model = ServedModel(ModelId("m"), SimpleNamespace(), SimpleNamespace)
    prompt = TokenizedPrompt((b"\0" * 400,), TokenSource.LOCAL)
    encoded = Encoded(
        request, request, model, space=SpaceGrant("5pace", ""), prompt=prompt, tokens=prompt.tokens, is_text=False
    )
    return RequestContext(encoded, SimpleNamespace(), SimpleNamespace(), stages=list(stages))


def placed(held_tokens=0):
    decision = Decision(Target(ReplicaId("r0"), 0), DecisionKind.WARM, held_tokens, "expected_ttft", ())
    return Placed(decision, REPLICA, {}, (), (), indexed=True)


def served(context, usage, *, ttft=None, held_tokens=0, dispatched_at=10.25):
    context.placed = placed(held_tokens)
    outcome = Outcome(Ending.COMPLETE, 200, True, ttft, 1.0, usage, streamed=ttft is not None)
    return Served(context.placed, outcome, dispatched_at, 0, None)


def record(context):
    end = served(context, Usage(100, 8, 0))
    settled = settlement(context, end, 200, None, 11.5)
    return request_record(context.encoded, end, settled, (), with_text=False)


def test_how_long_it_took_until_the_request_was_sent_and_where():
    made = record(received(("canon", 0.01), ("encode", 0.1), ("hash", 0.02), ("place", 0.03), ("settle", 0.2)))
    assert made.sent_after_seconds == pytest.approx(0.25)
    assert dict(made.stages) == {"canon": 0.01, "encode": 0.1, "hash": 0.02, "place": 0.03}


def test_stages_of_a_request_that_is_placed_again_are_summed():
    made = record(received(("encode", 0.1), ("hash", 0.02), ("place", 0.03), ("hash", 0.01), ("place", 0.04)))
    assert dict(made.stages) == pytest.approx({"encode": 0.1, "hash": 0.03, "place": 0.07})


def test_settlement_puts_prediction_and_report_side_by_side():
    context = received(("encode", 0.001), stream=True)
    end = served(context, Usage(100, 8, 64), ttft=0.2, held_tokens=48, dispatched_at=10.5)
    settled = settlement(context, end, 200, None, 12.0)
    assert (settled.space, settled.warming) == ("5pace", False)
    assert (settled.code, settled.peer) == (None, PEER)
    assert (settled.predicted_tokens, settled.cached_tokens, settled.prompt_tokens) == (48, 64, 100)
    assert settled.parity is True
    assert settled.ttft_seconds == pytest.approx(0.7)
    assert settled.seconds == pytest.approx(2.0)
    assert settled.saved_prefill_seconds == pytest.approx(0.064)


def test_request_without_a_replica_is_settled_with_the_gateway_s_own_count():
    settled = settlement(received(), None, 503, "no_replica", 11.0)
    assert (settled.status, settled.prompt_tokens, settled.cached_tokens, settled.parity) == (503, 100, None, None)
    assert (settled.code, settled.decision, settled.ending) == ("no_replica", None, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "x", "messages": [1, None, "x", {}, {"role": []}, {"role": {}}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"text": ["x" * 10**6] * 100}, 7, None, {"text": {"a": 1}}]}]},
        {"messages": {"role": "user"}},
        {"prompt": [["x" * 10**6] * 9, [5, 6, None], True]},
        {},
    ],
)
def test_any_fields_have_an_opening(fields):
    opening, turn = opening_and_turn(fields)
    assert 0 <= opening < 2**32
    assert turn >= 0


def test_an_opening_stays_while_a_conversation_goes_on():
    turns = [{"role": role, "content": text} for role, text in [("system", "S"), ("user", "Hi"), ("user", "And?")]]
    assert [opening_and_turn({"messages": turns[:count]})[1] for count in (1, 2, 3)] == [0, 1, 2]
    assert opening_and_turn({"messages": turns[:2]})[0] == opening_and_turn({"messages": turns})[0]
    assert opening_and_turn({"messages": turns[:1]})[0] != opening_and_turn({"messages": turns})[0]
