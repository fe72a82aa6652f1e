"""What the client sees of a stream that several replicas wrote."""

import pytest
from pieces import HEAD, Client, Letters, asking, chunks, event, opening, said, usage

from gateway.core.outcome import Ending, Outcome, Usage
from gateway.core.request import Endpoint
from gateway.proxy.resume import ResumableStream
from gateway.proxy.resume.sent_text import read_sent_text

DONE = b"data: [DONE]\n\n"


async def play(stream: ResumableStream, *events: bytes) -> bool:
    """A replica that breaks off behind these events; whether another one can go on."""
    stream.attempt(0.0)
    stream.start(200, [])
    for each in events:
        stream.write(each, more=True)
    return stream.can_go_on()


async def finish(stream: ResumableStream, *events: bytes, reported: Usage | None = None) -> Outcome:
    """A replica that answers to the end."""
    stream.attempt(1.0)
    stream.start(200, [])
    for each in events:
        stream.write(each, more=True)
    stream.write(b"", more=False)
    return stream.outcome(Outcome(Ending.COMPLETE, 200, True, 0.1, 0.2, reported, (b"x",), True))


def stream_to(client: Client, *, tokenizer: Letters | None = None, prompt: int | None = 5, **fields) -> ResumableStream:
    return ResumableStream(asking(**fields), client, tokenizer or Letters(prompt=prompt or 0), prompt)


async def test_one_stream_with_one_name():
    client = Client()
    stream = stream_to(client, stream_options={"include_usage": True})
    assert await play(stream, opening(), said("Hel"), said("lo"))
    other = {"id": "chatcmpl-2", "created": 9, "model": "demo", "system_fingerprint": "fp"}
    outcome = await finish(
        stream,
        opening(),
        said(" wor") + said("ld", "stop"),
        event(**other, choices=[], usage=usage(12, 2, 11)) + DONE,
        reported=Usage(12, 2, 11),
    )
    found = chunks(client.got)
    assert client.heads == [200]
    assert client.ended
    assert {(c["id"], c["created"], c.get("system_fingerprint")) for c in found} == {("chatcmpl-1", 7, None)}
    deltas = [c["choices"][0]["delta"] for c in found if c["choices"]]
    assert "".join(d["content"] for d in deltas) == "Hello world"
    assert sum("role" in d for d in deltas) == 1
    assert found[-1]["usage"] == usage(5, 7, 5)
    assert client.got.endswith(DONE)
    assert client.got.count(DONE) == 1
    assert (outcome.ending, outcome.usage) == (Ending.COMPLETE, Usage(5, 7, 5))
    assert b"".join(outcome.answer) == client.got


async def test_usage_where_only_the_engine_has_the_prompt_tokens():
    client = Client()
    stream = ResumableStream(asking(), client, None, None)
    assert await play(stream, opening(), said("Hello"), said(" you"))
    outcome = await finish(stream, said("!", "stop") + DONE, reported=Usage(22, 1, None))
    assert outcome.usage == Usage(20, 3, None)  # a token a chunk


async def test_usage_sent_with_every_chunk_counts():
    client = Client()
    stream = stream_to(client, prompt=20, stream_options={"include_usage": True, "continuous_usage_stats": True})
    first = event(choices=[{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}], usage=usage(20, 2))
    assert await play(stream, opening(), first)
    second = event(choices=[{"index": 0, "delta": {"content": "!"}, "finish_reason": "stop"}], usage=usage(22, 1))
    await finish(stream, second, DONE)
    assert [c["usage"] for c in chunks(client.got) if "usage" in c] == [usage(20, 2), usage(20, 3)]


async def test_two_deaths():
    client = Client()
    stream = stream_to(client, max_tokens=10)
    assert await play(stream, opening(), said("ab"))
    assert b'"max_tokens": 8' in stream.request.body
    assert await play(stream, opening(), said("cd"))
    assert b'"content":"abcd"' in stream.request.body
    assert b'"max_tokens": 6' in stream.request.body
    outcome = await finish(stream, opening(), said("e", "stop"), DONE, reported=Usage(9, 1, 0))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks(client.got)) == "abcde"
    assert outcome.usage == Usage(5, 5, 0)
    assert stream.resumed == 2


async def test_nothing_was_said_yet():
    client = Client()
    stream = ResumableStream(asking(), client, None, 5)
    assert await play(stream, opening(), said(""))
    assert stream.request.body == asking().body
    outcome = await finish(stream, opening(), said("a", "stop"), DONE, reported=Usage(5, 1, None))
    assert outcome.usage == Usage(5, 1, None)
    deltas = [c["choices"][0]["delta"] for c in chunks(client.got)]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": ""}, {"content": "a"}]


async def test_the_role_of_a_message_is_sent_once():
    client = Client()
    stream = stream_to(client)
    assert await play(stream, opening(), said("a"))
    both = {"index": 0, "delta": {"role": "assistant", "content": "b"}, "finish_reason": "stop"}
    await finish(stream, event(choices=[both]), DONE)
    assert chunks(client.got)[-1]["choices"][0]["delta"] == {"content": "b"}


async def test_connecting_fails_from_then_on():
    stream = stream_to(Client())
    assert await play(stream, opening(), said("a"))
    stream.attempt(1.0)
    outcome = stream.outcome(Outcome(Ending.NOT_CONNECTED, None, False, None, 0.1, None))
    # Not "nothing was computed": the first replica did.
    assert (outcome.ending, outcome.status, outcome.started) == (Ending.BROKEN, 200, True)


@pytest.mark.parametrize(
    ("fields", "events", "finish_reason", "completion"),
    [
        ({"max_tokens": 4}, [said("abcd")], "length", 4),
        ({"max_tokens": 3}, [said("abcd")], "length", 4),
        ({}, [said("abc", "stop")], "stop", 4),  # what ends a turn is a token, too
        ({}, [said("abc", "stop", stop_reason="d")], "stop", 3),
        ({}, [said("abc", "length")], "length", 3),
    ],
)
async def test_only_the_end_is_missing(fields, events, finish_reason, completion):
    client = Client()
    stream = stream_to(client, stream_options={"include_usage": True}, **fields)
    assert not await play(stream, opening(), *events)
    stream.write(b'data: {"error":{}}\n\n' + DONE, more=False)
    found = chunks(client.got)
    assert [c["choices"][0]["finish_reason"] for c in found if c["choices"]][-1] == finish_reason
    assert found[-1]["usage"]["completion_tokens"] == completion
    assert found[-1]["usage"]["prompt_tokens"] == 5
    assert {c["id"] for c in found} == {"chatcmpl-1"}
    assert client.got.endswith(DONE)
    outcome = stream.outcome(Outcome(Ending.BROKEN, 200, True, 0.1, 0.2, None, (b"x",), True))
    assert (outcome.ending, outcome.usage) == (Ending.COMPLETE, Usage(5, completion, None))


async def test_an_end_without_a_usage_that_was_not_asked_for_or_is_unknown():
    for fields, prompt in (({}, 5), ({"stream_options": {"include_usage": True}}, None)):
        client = Client()
        stream = stream_to(client, prompt=prompt, max_tokens=1, **fields)
        assert not await play(stream, opening(), said("a"))
        stream.write(b"", more=False)
        assert not any("usage" in chunk for chunk in chunks(client.got))
        assert client.got.endswith(DONE)


async def test_only_the_end_mark_is_missing():
    client = Client()
    stream = stream_to(client, stream_options={"include_usage": True})
    last = event(choices=[], usage=usage(5, 4, 2))
    assert not await play(stream, opening(), said("abc", "stop"), last)
    stream.write(b'data: {"error":{}}\n\n' + DONE, more=False)
    assert client.got == opening() + said("abc", "stop") + last + DONE


@pytest.mark.parametrize(
    "odd",
    [
        event(choices=[{"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "finish_reason": None}]),
        event(choices=[{"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": None}]),
        event(choices=[{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}]),
        event(choices=[{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]),
        event(choices=[{"index": 0, "delta": {"content": "b"}}] * 2),
        event(choices=[{"index": 0, "delta": {"content": "b"}, "logprobs": {"content": [1]}}]),
        b'data: {"error":{"message":"m"}}\n\n',
        b"data: {half\n\n",
    ],
)
async def test_more_than_text_is_not_continued(odd):
    client = Client()
    assert not await play(stream_to(client), opening(), said("a"), odd)
    other = stream_to(Client())
    assert await play(other, opening(), said("a"))


@pytest.mark.parametrize("name", ["reasoning", "tool_calls"])
async def test_more_than_text_in_the_continuation_ends_the_stream_with_an_error(name):
    client = Client()
    stream = stream_to(client)
    assert await play(stream, opening(), said("a"))
    odd = event(choices=[{"index": 0, "delta": {name: ["b"]}, "finish_reason": None}])
    outcome = await finish(stream, opening(), odd, said("c", "stop"), DONE, reported=Usage(6, 2, 0))
    assert outcome.ending is Ending.BROKEN
    assert client.got.startswith(opening() + said("a") + b'data: {"error":')
    assert client.got.endswith(DONE)


@pytest.mark.parametrize(
    ("strips", "next_said"), [(True, ["\n", "\nb"]), (False, ["b"]), (True, ["b"]), (True, ["\n\nb"])]
)
async def test_white_space_that_the_template_strips_is_not_sent_twice(strips, next_said):
    client = Client()
    stream = stream_to(client, tokenizer=Letters(strips=strips))
    assert await play(stream, opening(), said("a\n\n"))
    await finish(stream, opening(), *map(said, next_said), DONE)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks(client.got)) == "a\n\nb"


async def test_white_space_that_the_template_keeps_may_come_again():
    client = Client()
    stream = stream_to(client)
    assert await play(stream, opening(), said("a\n"))
    await finish(stream, said("\nb"), DONE)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks(client.got)) == "a\n\nb"


@pytest.mark.parametrize(("before", "goes_on"), [("", True), (" ", True), ("<think></think>", False)])
async def test_a_template_that_prints_something_before_the_answer_is_not_asked_to_continue_it(before, goes_on):
    client = Client()
    stream = stream_to(client, tokenizer=Letters(before=before))
    assert await play(stream, opening(), said("<think>Well")) is goes_on
    assert client.got == opening() + said("<think>Well")


async def test_a_template_that_leaves_out_what_the_answer_began_with_is_not_asked_either():
    stream = stream_to(Client(), tokenizer=Letters(prompt=3), prompt=5)
    assert not await play(stream, opening(), said("Well"))


async def test_completions():
    client = Client()
    stream = ResumableStream(asking(Endpoint.COMPLETIONS, prompt="Hi", max_tokens=9), client, Letters(), 2)
    one = b'data: {"id":"cmpl-1","choices":[{"index":0,"text":"ab","finish_reason":null}]}\n\n'
    assert await play(stream, one)
    assert b'"prompt": "Hiab"' in stream.request.body
    two = one.replace(b"cmpl-1", b"cmpl-2").replace(b"ab", b"cd").replace(b"null", b'"stop","prompt_token_ids":[1]')
    await finish(stream, two, DONE, reported=Usage(4, 2, 0))
    assert [(c["id"], c["choices"][0]["text"]) for c in chunks(client.got)] == [("cmpl-1", "ab"), ("cmpl-1", "cd")]
    assert b"prompt_token_ids" not in client.got


async def test_token_ids_are_believed_before_the_tokenizer():
    client = Client()
    stream = stream_to(client, max_tokens=10, return_token_ids=True)
    first = event(
        prompt_token_ids=[1, 2],
        choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}],
    )
    assert await play(stream, first, said("abcd", token_ids=[9]))
    assert b'"max_tokens": 9' in stream.request.body
    last = {"index": 0, "delta": {"content": "e"}, "finish_reason": "stop"}
    again = event(prompt_token_ids=[1, 2, 9], choices=[last])
    await finish(stream, again, DONE)
    assert sum("prompt_token_ids" in c for c in chunks(client.got)) == 1


ANSWERED = Outcome(Ending.COMPLETE, 200, True, 0.1, 0.2, None, streamed=True)
FAILED = b'data: {"error":{"message":"EngineDeadError","type":"InternalServerError","code":500}}\n\n'


@pytest.mark.parametrize("pieces", [[FAILED, DONE], [FAILED + DONE], [said("lost") + FAILED, DONE]], ids=len)
async def test_an_engine_that_says_itself_that_it_failed(pieces):
    client = Client()
    stream = stream_to(client)
    assert await play(stream, opening(), said("ab"), *pieces)
    noted = stream.note(ANSWERED)
    assert (noted.ending, noted.has_content) == (Ending.BROKEN, True)
    outcome = await finish(stream, opening(), said("c", "stop"), DONE, reported=Usage(7, 1, 0))
    assert stream.note(ANSWERED) == ANSWERED
    assert outcome.ending is Ending.COMPLETE
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks(client.got)) == "abc"


async def test_an_engines_own_error_is_sent_where_no_replica_continues():
    client = Client()
    stream = stream_to(client)
    assert await play(stream, opening(), said("ab"), FAILED, DONE)
    stream.write(b"", more=False)
    assert client.got == opening() + said("ab") + FAILED + DONE
    assert stream.note(Outcome(Ending.COMPLETE, 200, True, 0.1, 0.2, None)).ending is Ending.BROKEN


async def test_an_engine_whose_first_event_is_an_error_has_sent_nothing():
    client = Client()
    stream = stream_to(client)
    await play(stream, FAILED, DONE)
    noted = stream.note(ANSWERED)
    assert (noted.ending, noted.has_content, noted.started) == (Ending.BROKEN, False, False)
    assert client.heads == []
    outcome = await finish(stream, opening(), said("c", "stop"), DONE, reported=Usage(5, 1, 0))
    assert client.heads == [200]
    assert client.got == opening() + said("c", "stop") + DONE
    assert (outcome.ending, outcome.usage, stream.pieced) == (Ending.COMPLETE, Usage(5, 1, 0), False)


async def test_first_event_is_sent_where_no_other_replica_answers():
    client = Client()
    stream = stream_to(client)
    await play(stream, FAILED, DONE)
    stream.write(b"", more=False)
    assert (client.heads, client.got, client.ended) == ([200], FAILED + DONE, True)
    assert stream.note(Outcome(Ending.COMPLETE, 200, True, 0.1, 0.2, None)).started


async def test_an_error_that_is_the_requests_own_fault_is_reported():
    client = Client()
    stream = stream_to(client)
    fault = b'data: {"error":{"message":"bad","code":400}}\n\n'
    assert not await play(stream, opening(), said("ab"), fault)
    assert client.got == opening() + said("ab") + fault


async def test_too_long_to_be_kept():
    stream = stream_to(Client())
    assert not await play(stream, opening(), *[said("x" * 2**20)] * 5)


def test_what_was_sent_is_read_from_any_pieces():
    sent = read_sent_text(opening() + said("a") + said("") + said("b", "length"))
    assert sent is not None
    assert (sent.text, sent.chunks, sent.finish_reason, sent.head) == ("ab", 3, "length", HEAD)
    assert read_sent_text(b"") is None
