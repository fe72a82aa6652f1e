"""The form of messages is checked to the last one, however many there are and wherever tool calls stand."""

import orjson
import pytest

from gateway.api.parse import parse_request
from gateway.config.server_settings import ServerSettings
from gateway.core.errors import BadRequest
from gateway.core.ids import RequestId
from gateway.core.portions import finished
from gateway.core.request import Endpoint
from gateway.core.tenant import EVERYBODY

PLAIN = {"role": "user", "content": "hi"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
LIMITS = ServerSettings().json_limits


def parsing(messages, limits=LIMITS, **fields):
    return parse_request(
        Endpoint.CHAT,
        b"",
        orjson.dumps({"model": "m", "messages": messages, **fields}),
        (),
        models=["m"],
        limits=limits,
        hold=lambda _: None,
        request_id=RequestId("r"),
        received_at=0.0,
        caller=EVERYBODY,
        peer="",
    )


def refused(messages, limits=LIMITS, **fields):
    with pytest.raises(BadRequest) as caught:
        finished(parsing(messages, limits, **fields))
    return caught.value.param


def pauses(work):
    """How often some work pauses until it ends, or refuses the request."""
    count = 0
    while True:
        try:
            next(work)
        except (StopIteration, BadRequest):
            return count
        count += 1


@pytest.mark.parametrize("calling", [(), (0,), (3,), (4999,), (5000,), (4998, 4999, 5000, 5001)])
@pytest.mark.parametrize("wrong", [4, 4999, 5000, 9999, 10_000, 10_002])
def test_a_wrong_message_is_found_anywhere(calling, wrong):
    messages = [PLAIN] * 10_003
    for position in calling:
        messages[position] = CALLING
    assert len(finished(parsing(messages)).fields["messages"]) == 10_003
    messages[wrong] = {"role": 1, "content": "hi"}
    assert refused(messages) == f"messages[{wrong}].role"
    messages[wrong] = "tool_calls"
    assert refused(messages) == f"messages[{wrong}]"


@pytest.mark.parametrize("position", [0, 1, 4999, 5000, 5001])
def test_arguments_are_counted_anywhere(position):
    many = {"function": {"name": "f", "arguments": "[" + "[]," * 40_000 + "[]]"}}
    messages = [PLAIN] * 5002
    messages[position] = {**CALLING, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}, many]}
    limits = LIMITS._replace(containers=30_000)
    assert refused(messages, limits) == f"messages[{position}].tool_calls[1].function.arguments"


@pytest.mark.parametrize("messages", [[PLAIN], [CALLING], [PLAIN] * 5001])
def test_tools_are_a_list_behind_any_messages(messages):
    assert refused(messages, tools={}) == "tools"


@pytest.mark.parametrize("every", [1, 1000, 20_001])
def test_others_have_their_turn_between_thousands_of_messages(every):
    messages = [CALLING if number % every == every - 1 else PLAIN for number in range(20_000)]
    all_checked = pauses(parsing(messages))
    messages[0] = None
    assert all_checked - pauses(parsing(messages)) >= 3
