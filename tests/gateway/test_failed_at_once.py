"""An engine whose first words in a stream are that it failed, as vLLM says whose computing process died."""

import pytest
from scripted_engine import STREAM_HEAD, chunk

FAILED = b'data: {"error":{"message":"EngineDeadError","type":"InternalServerError","param":null,"code":500}}\n\n'


@pytest.mark.parametrize("others", [1, 0], ids=["another", "alone"])
async def test_the_client_notices_nothing_if_another_one_answers(scripted, start_engine, start_gateway, others):
    scripted.says(STREAM_HEAD + chunk(FAILED), chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    engines = [await start_engine() for _ in range(others)]
    gateway = await start_gateway(
        scripted, *engines, relay={"resume": True, "suspect_seconds": 0}, placement={"policy": "round_robin"}
    )
    answers = [await gateway.ask(stream=True, max_tokens=5) for _ in range(4)]
    assert scripted.received
    for answer in answers:
        assert answer.status_code == 200
        assert answer.headers["x-gateway-replica"] == ("r1" if others else "r0")
        assert ("EngineDeadError" in answer.text) is not bool(others)
        assert answer.text.endswith("data: [DONE]\n\n")
    metrics = await gateway.settled(4)
    stage = "first_byte" if others else "stream"
    assert metrics.value("gateway_failovers_total", stage=stage) == len(scripted.received)
