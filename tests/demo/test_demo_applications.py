import json
from itertools import pairwise
from random import Random

import pytest

from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.demo.applications import APPLICATIONS, agent, briefing, support
from gateway.tokenize.load_tokenizer import load_local

REPLY = {"role": "assistant", "content": "The order is open."}


def play(script, replies=()):
    """All requests of a conversation."""
    asked = [next(script)]
    replies = iter(replies)
    while True:
        try:
            asked.append(script.send(next(replies, REPLY)))
        except StopIteration:
            return asked


@pytest.mark.parametrize("application", APPLICATIONS, ids=lambda application: application.name)
def test_the_same_user_asks_the_same_on_both_sides(application):
    def three():
        rng = Random("user 1")
        return [play(application.script(rng)) for _ in range(3)]

    assert three() == three()
    assert three() != [play(application.script(Random("user 2"))) for _ in range(3)]


def test_prompts_have_between_one_and_five_thousand_tokens():
    encoder = load_local("builtin:demo")
    for application in APPLICATIONS:
        rng = Random(0)
        lengths = [
            len(encoder.encode(Endpoint.CHAT, fields)[0]) // TOKEN_BYTES
            for _ in range(5)
            for fields in play(application.script(rng))
        ]
        assert min(lengths) > 1000, application.name
        assert max(lengths) < 5000, application.name


def test_a_conversation_only_grows():
    for script in (support, agent):
        asked = [fields["messages"] for fields in play(script(Random(3)))]
        assert len(asked) > 2
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(asked))


def test_the_agent_answers_every_call_with_a_result_of_its_own():
    def call(number):
        function = {"name": "find_order", "arguments": '{"ticket": 1, "query": "x"}'}
        calls = [{"id": f"call-{number}", "type": "function", "function": function}]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    asked = play(agent(Random(1)), map(call, range(100)))
    results = [message for message in asked[-1]["messages"] if message["role"] == "tool"]
    assert [result["tool_call_id"] for result in results] == [f"call-{n}" for n in range(len(results))]
    assert len(results) >= 5
    assert all(json.loads(result["content"])["status"] == "ok" for result in results)
    assert asked[-1]["tool_choice"] == "none"


def test_briefings_differ_in_their_first_line_and_nowhere_else_in_the_system_prompt():
    rng = Random(5)
    systems = [next(briefing(rng))["messages"][0]["content"].split("\n", 1) for _ in range(50)]
    assert len({first for first, _ in systems}) == 50
    assert len({rest for _, rest in systems}) == 1
