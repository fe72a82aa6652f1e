"""What the gateway records that was answered."""

from types import SimpleNamespace

import pytest

from gateway.context import RequestContext, ServedModel
from gateway.core.decision import Decision, DecisionKind
from gateway.core.engine_facts import EngineFacts
from gateway.core.ids import ModelId, ReplicaId, RequestId, Target
from gateway.core.outcome import Ending, Outcome, Usage
from gateway.core.prompt import TokenizedPrompt, TokenSource
from gateway.core.replica_state import Rates
from gateway.core.request import ChatRequest, Endpoint
from gateway.explain.reconcile import settlement
from gateway.request_record import finished

RATES = Rates(0.01, 0.001, 0.02, 2.0)


def answered_trip(*stages):
    """A request that arrived at 10 s and was sent on at 10.25 s."""
    request = ChatRequest(
        Endpoint.CHAT, b"", b"{}", {}, [], ModelId("m"), False, False, RequestId("r"), None, received_at=10.0
    )
    model = ServedModel(ModelId("m"), SimpleNamespace(), lambda salt, variant: 0, SimpleNamespace)
    return RequestContext(
        request,
        request,
        model,
        SimpleNamespace(),
        prompt=TokenizedPrompt((b"\0" * 400,), TokenSource.LOCAL),
        decision=Decision(Target(ReplicaId("r0"), 0), DecisionKind.COLD, 0, "expected_ttft", ()),
        replica=SimpleNamespace(facts=EngineFacts(), usage_details=True, speed=SimpleNamespace(rates=RATES)),
        dispatched_at=10.25,
        outcome=Outcome(Ending.COMPLETE, 200, True, None, 1.0, Usage(100, 8, 0)),
        stages=list(stages),
    )


def told(context):
    settled = settlement(
        context.request,
        context.prompt,
        context.decision,
        context.outcome,
        rates=RATES,
        status=200,
        failed_attempts=0,
        failures=(),
        dispatched_at=context.dispatched_at,
        now=11.5,
        stages=tuple(context.stages),
        space="",
        code=None,
    )
    return finished(context, settled, with_text=False)


def test_how_long_it_took_until_the_request_was_sent_and_where():
    made = told(answered_trip(("canon", 0.01), ("encode", 0.1), ("hash", 0.02), ("place", 0.03), ("settle", 0.2)))
    assert made.sent_after_seconds == pytest.approx(0.25)
    assert dict(made.stages) == {"canon": 0.01, "encode": 0.1, "hash": 0.02, "place": 0.03}


def test_of_a_request_that_had_to_be_placed_again_each_room_has_all_its_time():
    made = told(answered_trip(("encode", 0.1), ("hash", 0.02), ("place", 0.03), ("hash", 0.01), ("place", 0.04)))
    assert dict(made.stages) == pytest.approx({"encode": 0.1, "hash": 0.03, "place": 0.07})
