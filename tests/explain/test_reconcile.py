import pytest

from gateway.core.ids import ModelId, RequestId
from gateway.core.outcome import Ending, Outcome, Usage
from gateway.core.prompt import TokenizedPrompt, TokenSource
from gateway.core.replica_state import Rates
from gateway.core.request import ChatRequest, Endpoint
from gateway.explain.reconcile import confirmed_tokens, learn, reply_choices
from gateway.routing import LearnedRates
from gateway.tokenize.block_hashes import ChainHasher

PEER = "203.0.113.9"
RATES = Rates(0.01, 0.001, 0.02, 2.0)
PROMPT = TokenizedPrompt((b"\0" * 400,), TokenSource.LOCAL)


def request(endpoint=Endpoint.CHAT, **fields):
    return ChatRequest(
        endpoint,
        b"",
        b"{}",
        fields,
        [],
        ModelId("m"),
        bool(fields.get("stream")),
        False,
        RequestId("r"),
        None,
        10.0,
        peer=PEER,
    )


USAGE = Usage(100, 8, 64)


def outcome(usage=USAGE, ending=Ending.COMPLETE, answer=(), ttft=None, seconds=1.0, streamed=False):
    return Outcome(ending, 200, True, ttft, seconds, usage, answer, streamed)


def test_report_counts_as_confirmation():
    assert confirmed_tokens(request(), PROMPT, outcome()) == 64


@pytest.mark.parametrize(
    ("asked", "prompt", "usage"),
    [
        (request(), PROMPT, None),
        (request(), PROMPT, Usage(100, 8, None)),
        (request(), PROMPT, Usage(101, 8, 64)),
        (request(prompt_logprobs=1), PROMPT, Usage(100, 8, 0)),
        (request(Endpoint.COMPLETIONS, echo=True, logprobs=2), PROMPT, Usage(100, 8, 0)),
        (request(), TokenizedPrompt((b"\0" * 400,), TokenSource.TEXT), Usage(100, 8, 64)),
        (request(), TokenizedPrompt((b"\0" * 200, b"\0" * 200), TokenSource.LOCAL), Usage(100, 8, 64)),
    ],
    ids=["no usage", "no details", "other count", "prompt logprobs", "echo", "text", "several prompts"],
)
def test_report_that_says_nothing_about_the_cache_is_no_confirmation(asked, prompt, usage):
    assert confirmed_tokens(asked, prompt, outcome(usage)) is None


def test_text_of_an_answer_and_of_a_stream():
    whole = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Hello there"}}]}'
    assert [reply.text for reply in reply_choices(outcome(answer=[whole]))] == ["Hello there"]
    events = [
        b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\ndata: {"choices":[{"ind',
        b'ex":1,"delta":{"content":"B"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"A\\n"}},{"index":1,"delta":{"content":"2"}}]}\n\n',
        b'data: {"choices":[],"usage":{}}\n\ndata: [DONE]\n\n',
    ]
    assert [reply.text for reply in reply_choices(outcome(answer=events, streamed=True))] == ["A\n", "B2"]
    assert [reply.text for reply in reply_choices(outcome(answer=[b'{"choices":[{"index":0,"text":" world"}]}']))] == [
        " world"
    ]


@pytest.mark.parametrize(
    "message",
    [
        '{"content":null,"tool_calls":[{"id":"1"}]}',
        '{"content":"x","reasoning":"thought"}',
        '{"content":"x","reasoning_content":"thought"}',
    ],
)
def test_answer_that_was_taken_apart_is_not_taken_for_its_text(message):
    answer = f'{{"choices":[{{"index":0,"message":{message}}}]}}'.encode()
    assert [reply.text for reply in reply_choices(outcome(answer=[answer]))] == [None]


@pytest.mark.parametrize("answer", [b"", b"not json", b"[]", b'{"choices":5}', b'{"choices":[7,{"index":"a"}]}'])
def test_odd_answers_hold_no_text(answer):
    assert list(reply_choices(outcome(answer=[answer]))) == []


@pytest.mark.parametrize(
    "event",
    [
        b"[DONE",
        b"7",
        b'{"choices":null}',
        b'{"choices":[7]}',
        b'{"choices":[{"index":"a","delta":{"content":"x"}}]}',
        b'{"choices":[{"index":0,"delta":7}]}',
        b'{"choices":[{"index":0,"delta":{"content":"\\ud800"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"\xff"}}]}',
        b'{"choices":[{"index":0,"delta":null,"finish_reason":"stop"}]}',
        b'{"choices":[{"index":0,"delta":{}}]}',
        b'{"choices":[{"index":0,"delta":{"content":["x"]}}]}',
    ],
)
def test_the_text_of_a_stream_is_that_of_the_events_that_have_text(event):
    text = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
    events = [text % b"A", b"data: " + event + b"\n\n", text % b"B"]
    for end in ([], [b"data: [DONE]\n\n"]):
        assert [reply.text for reply in reply_choices(outcome(answer=events + end, streamed=True))] == ["AB"]


def test_text_behind_the_end_mark_of_a_stream_is_text_of_the_answer():
    text = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
    answer = [text % b"A", b"data: [DONE]\n\n", text % b"B"]
    assert [reply.text for reply in reply_choices(outcome(answer=answer, streamed=True))] == ["AB"]


def test_stream_teaches_prefill_and_decode_times():
    speed = LearnedRates(RATES)
    for tokens in range(200, 3000, 40):
        seconds = 0.01 + (100 + tokens) / 2000
        learn(speed, outcome(Usage(3000, 11, 0), ttft=seconds, seconds=seconds + 0.5, streamed=True), 100, tokens)
    assert 1 / speed.rates.prefill_seconds_per_token == pytest.approx(2000, rel=0.15)
    assert speed.rates.decode_seconds_per_token == pytest.approx(0.05, rel=0.05)


def test_broken_stream_teaches_only_what_it_showed():
    speed = LearnedRates(RATES)
    learn(speed, outcome(None, Ending.BROKEN, ttft=0.5, seconds=60.0, streamed=True), 0, 1000)
    assert speed.rates.request_seconds == RATES.request_seconds
    assert speed.rates.decode_seconds_per_token == RATES.decode_seconds_per_token


def test_answers_faster_than_the_clock_are_learned_as_well():
    speed = LearnedRates(RATES)
    for _ in range(3):
        learn(speed, outcome(Usage(10, 2, 0), ttft=0.0, seconds=0.0, streamed=True), 0, 10)
    assert speed.longest_first_content(10, streamed=True) < 60
    assert speed.longest_first_content(10, streamed=False) < 60


def test_chains_of_an_extended_prompt_share_their_beginning():
    hasher = ChainHasher()
    chain = hasher.chain(1, b"\1\0\0\0" * 40, 16)
    longer = hasher.extended(1, chain, b"\1\0\0\0" * 38, 70)
    assert list(longer.hashes[:2]) == list(chain.hashes)
