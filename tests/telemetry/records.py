"""Values as the stages hand them to observers."""

import json
from pathlib import Path
from typing import Any

from gateway.core.decision import Decision, DecisionKind
from gateway.core.ids import ModelId, ReplicaId, RequestId, Target, TenantId
from gateway.core.outcome import Ending
from gateway.core.prompt import TokenSource
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.settlement import Refusal, Settlement
from gateway.core.space import PrefixSpace, ResetCause, SpaceEnd
from gateway.core.tenant import Caller, Tenant

ACME = Caller(Tenant(TenantId("acme"), label="acme"), key_id="ci", scope="de")


def settlement(**other: Any) -> Settlement:
    fields: dict[str, Any] = {
        "request_id": RequestId("req-1"),
        "model": ModelId("m"),
        "endpoint": Endpoint.CHAT,
        "decision": Decision(Target(ReplicaId("r0")), DecisionKind.WARM, 64, "expected_ttft", ()),
        "ending": Ending.COMPLETE,
        "status": 200,
        "failed_attempts": 0,
        "failures": (),
        "streamed": True,
        "token_source": TokenSource.LOCAL,
        "prompt_tokens": 100,
        "predicted_tokens": 64,
        "cached_tokens": 80,
        "completion_tokens": 3,
        "parity": True,
        "saved_prefill_seconds": 0.5,
        "ttft_seconds": 0.1,
        "seconds": 0.2,
        "stages": (("encode", 0.001),),
        "caller": ACME,
        "peer": "203.0.113.9",
        "space": "k3v9",
        "warming": False,
    }
    return Settlement(**fields | other)


def request() -> ChatRequest:
    return ChatRequest(
        endpoint=Endpoint.CHAT,
        query=b"",
        body=b"{}",
        fields={},
        headers=(),
        model=ModelId("m"),
        stream=False,
        usage_wanted=False,
        request_id=RequestId("req-1"),
        session=None,
        received_at=0.0,
        caller=ACME,
    )


def refusal(status: int, code: str, caller: Caller | None = None) -> Refusal:
    return Refusal(RequestId("req-2"), Endpoint.CHAT, status, code, "203.0.113.9", caller)


def space_end(cause: ResetCause = ResetCause.MANUAL, by: str = "grafana") -> SpaceEnd:
    space = PrefixSpace("m", "tok1", "v3+abcd", "tenant:acme", "de", "", 8192, "eu", 17)
    return SpaceEnd(space, "k3v9", cause, by)


def lines_of(*files: Path) -> list[dict[str, Any]]:
    """What the files hold; fails for a line that is not whole."""
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
