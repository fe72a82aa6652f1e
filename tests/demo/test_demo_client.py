import pytest

from gateway.demo.demo_client import Client, RequestFailed
from gateway.demo.demo_plan import MODEL
from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine

FIELDS = {"messages": [{"role": "user", "content": "Where is the order? " * 20}], "max_tokens": 8}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"properties": {"n": {"type": "integer"}}}}}]


@pytest.fixture
async def engine():
    one = SimulatedEngine(EngineConfig(model=MODEL, prefill_rate=1000.0, decode_ms=1.0))
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
async def client(engine):
    one = Client(engine.url)
    yield one
    await one.close()


async def test_an_answer_says_what_the_engine_reported(client):
    cold = await client.ask(FIELDS, "shop")
    assert cold.message["role"] == "assistant"
    assert len(cold.message["content"]) > 8
    assert cold.prompt_tokens > 80
    assert cold.cached_tokens == 0
    assert cold.ttft_seconds >= cold.prompt_tokens / 1000
    warm = await client.ask(FIELDS, "shop")
    assert warm.cached_tokens == (warm.prompt_tokens - 1) // 16 * 16
    assert warm.ttft_seconds < cold.ttft_seconds


async def test_a_tool_call_is_put_together_from_its_pieces(client):
    choice = {"type": "function", "function": {"name": "find"}}
    answer = await client.ask({**FIELDS, "max_tokens": 60, "tools": TOOLS, "tool_choice": choice}, "shop")
    (call,) = answer.message["tool_calls"]
    assert call["function"]["name"] == "find"
    assert call["function"]["arguments"].startswith('{"n": ')
    assert call["function"]["arguments"].endswith("}")
    # What came goes into the history as it is.
    result = {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
    await client.ask(
        {"messages": [*FIELDS["messages"], answer.message, result], "tools": TOOLS, "max_tokens": 4}, "shop"
    )


@pytest.mark.parametrize(
    ("fault", "said"),
    [("500", "status 500"), ("die_mid_stream=3", "Error"), ("die_before_first_byte", "Error"), ("refuse", "Connect")],
)
async def test_what_is_no_whole_answer_has_failed(engine, client, fault, said):
    await engine.set_fault(fault)
    with pytest.raises(RequestFailed, match=said):
        await client.ask(FIELDS, "shop")
