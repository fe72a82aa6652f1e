"""An answer that is continued is the one that it would have been."""

import httpx
import pytest

from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hello."}]


@pytest.fixture
async def ask():
    """Asks an engine; returns the answer's text, finish reason and completion tokens."""
    engine = SimulatedEngine(EngineConfig(prefill_rate=1e6, decode_ms=0.0))
    await engine.start()
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client:

        async def post(path: str, **fields):
            answer = await client.post(path, json=fields)
            if answer.status_code != 200:
                return answer.status_code
            found = answer.json()
            choice = found["choices"][0]
            text = choice["message"]["content"] if path == CHAT else choice["text"]
            return text, choice["finish_reason"], found["usage"]["completion_tokens"]

        yield post
    await engine.kill()


def continued(text: str) -> dict:
    messages = [*MESSAGES, {"role": "assistant", "content": text}]
    return {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}


@pytest.mark.parametrize("words", [1, 7, 10, 11, 30])
@pytest.mark.parametrize("limits", [{"ignore_eos": True}, {"min_tokens": 50}])
async def test_chat(ask, words, limits):
    most = 40 if "ignore_eos" in limits else 400
    whole, reason, tokens = await ask(CHAT, messages=MESSAGES, max_tokens=most, **limits)
    begun = " ".join(whole.split(" ")[:words])
    spent = words + begun.count(".")
    if "min_tokens" in limits:
        limits = {"min_tokens": max(50 - spent, 0)}
    rest, ended, more = await ask(CHAT, **continued(begun), max_tokens=most - spent, **limits)
    assert (begun + rest, ended, spent + more) == (whole, reason, tokens)


async def test_completion(ask):
    whole, reason, tokens = await ask(COMPLETIONS, prompt="A story:\n", max_tokens=40, ignore_eos=True)
    begun = " ".join(whole.split(" ")[:9])
    rest, ended, more = await ask(COMPLETIONS, prompt="A story:\n" + begun, max_tokens=31, ignore_eos=True)
    assert (begun + rest, ended, 9 + more) == (whole, reason, tokens)


async def test_default_limit_is_that_of_the_whole_answer(ask):
    whole, _, _ = await ask(CHAT, messages=MESSAGES)
    begun = " ".join(whole.split(" ")[:5])
    rest, ended, more = await ask(CHAT, **continued(begun))
    assert (begun + rest, ended, more) == (whole, "length", 11)


async def test_what_it_would_not_have_said_is_continued_somehow(ask):
    text, reason, tokens = await ask(CHAT, **continued("Never would I say that,"), max_tokens=5, ignore_eos=True)
    assert text
    assert (reason, tokens) == ("length", 5)


async def test_both_flags_are_refused_as_the_engine_does(ask):
    assert await ask(CHAT, **continued("The") | {"add_generation_prompt": True}) == 400
