"""The encoder: what happens to long texts, and when no tokenizer helps."""

import asyncio
import threading

import orjson
import pytest
from patience import HANG_SECONDS

from gateway.core.errors import TokenizerUnavailable
from gateway.core.ids import ModelId, RequestId
from gateway.core.ports import EngineUnavailable
from gateway.core.prompt import TokenSource
from gateway.core.request import ChatRequest, Endpoint
from gateway.routing.fair_threads import FairThreads
from gateway.tokenize.backends import pack
from gateway.tokenize.encoder import Encoder
from gateway.tokenize.engine_tokenizer import EngineTokenizer
from gateway.tokenize.load_tokenizer import load_local


def request(fields, endpoint=Endpoint.CHAT, at=0.0):
    body = orjson.dumps(fields)
    return ChatRequest(endpoint, b"", body, fields, [], ModelId("m"), False, False, RequestId("r"), None, at)


def chat(text="Hello", **fields):
    return request({"model": "m", "messages": [{"role": "user", "content": text}], **fields})


class Engines:
    """Answers by path; an exception is raised, anything else returned as JSON."""

    def __init__(self, **answers):
        self.answers = {path.replace("_", "/"): answer for path, answer in answers.items()}
        self.asked = []

    async def ask(self, model, path, body, timeout_seconds, regions=frozenset()):
        self.asked.append(path)
        answer = self.answers.get(path.rsplit("/", 1)[1], EngineUnavailable("no such endpoint", 404))
        if isinstance(answer, Exception):
            raise answer
        return orjson.dumps(answer)


@pytest.fixture
def threads():
    pool = FairThreads(1, 2**20)
    yield pool
    pool.shutdown()


def encoder(threads, engines, local=None, inline_bytes=1000):
    return Encoder(local, EngineTokenizer(ModelId("m"), engines, threads, 1.0), threads, inline_bytes)


class Slow:
    """A tokenizer that takes its time, as a long unseen text does: until ``released``."""

    def __init__(self):
        self.released = threading.Event()

    def encode(self, endpoint, fields):
        assert self.released.wait(HANG_SECONDS)
        return (b"\1\0\0\0",)

    encode_text = None


async def test_long_text_does_not_hold_up_the_event_loop(threads):
    slow = Slow()
    task = asyncio.create_task(encoder(threads, Engines(), slow).encode(chat("x" * 2000)))
    for _ in range(10):
        await asyncio.sleep(0.01)
        assert not task.done()
    slow.released.set()
    assert (await task).source is TokenSource.LOCAL


async def test_local_tokenizer_sends_no_request(threads):
    engines = Engines()
    prompt = await encoder(threads, engines, load_local("builtin:demo")).encode(chat())
    assert prompt.source is TokenSource.LOCAL
    assert engines.asked == []


async def test_engine_is_asked_for_what_the_local_tokenizer_cannot_encode(threads):
    class Refuses:
        def encode(self, endpoint, fields):
            raise TokenizerUnavailable("an image")

    engines = Engines(render={"token_ids": [1, 2, 3]})
    prompt = await encoder(threads, engines, Refuses()).encode(chat())
    assert (prompt.source, prompt.tokens) == (TokenSource.ENGINE_RENDER, 3)


async def test_tokenizer_that_breaks_costs_no_request_its_answer(threads):
    class Breaks:
        def encode(self, endpoint, fields):
            raise MemoryError

    prompt = await encoder(threads, Engines(), Breaks()).encode(chat())
    assert prompt.source is TokenSource.TEXT


async def test_render_that_is_switched_off_is_asked_again_only_after_a_minute(threads):
    engines = Engines(render=EngineUnavailable("forbidden", 403), tokenize={"tokens": [1, 2]})
    encode = encoder(threads, engines)
    for at in (0.0, 30.0, 61.0):
        prompt = await encode.encode(request(dict(chat().fields), at=at))
        assert (prompt.source, prompt.tokens) == (TokenSource.ENGINE_TOKENIZE, 2)
    assert [path.rsplit("/", 1)[1] for path in engines.asked] == [
        "render",
        "tokenize",
        "tokenize",
        "render",
        "tokenize",
    ]


async def test_completions_are_tokenized_prompt_by_prompt(threads):
    engines = Engines(render=EngineUnavailable("forbidden", 403), tokenize={"tokens": [1, 2]})
    several = request({"model": "m", "prompt": ["one", "two"]}, Endpoint.COMPLETIONS)
    prompt = await encoder(threads, engines).encode(several)
    assert (len(prompt.parts), prompt.tokens) == (2, 4)


@pytest.mark.parametrize(
    "answer",
    [
        EngineUnavailable("timed out"),
        EngineUnavailable("bad request", 400),
        {"token_ids": "no"},
        {"token_ids": [-1]},
        {"token_ids": [1.5]},
        [],
        [5],
        "x",
    ],
)
async def test_engine_that_does_not_help_leaves_the_text(threads, answer):
    prompt = await encoder(threads, Engines(render=answer)).encode(chat("A" * 400))
    assert prompt.source is TokenSource.TEXT
    assert 100 <= prompt.tokens < 130


async def test_texts_with_a_common_beginning_get_stand_ins_with_a_common_beginning(threads):
    encode = encoder(threads, Engines())
    messages = [{"role": "system", "content": "Rules. " * 60}]
    one, other = [
        await encode.encode(request({"model": "m", "messages": [*messages, {"role": "user", "content": text}]}))
        for text in ("first question", "another one")
    ]
    assert one.parts[0][:400] == other.parts[0][:400]
    assert one.parts[0] != other.parts[0]


@pytest.mark.parametrize("prompt", ["text", ["a", "b"], [[1], "b"], None])
async def test_stand_ins_exist_for_every_form_of_prompt(threads, prompt):
    encoded = await encoder(threads, Engines()).encode(request({"model": "m", "prompt": prompt}, Endpoint.COMPLETIONS))
    assert encoded.source is TokenSource.TEXT
    assert encoded.tokens > 0


@pytest.mark.parametrize(
    ("source", "local", "ids"),
    [
        (TokenSource.LOCAL, None, None),
        (TokenSource.TEXT, "builtin:demo", None),
        (TokenSource.ENGINE_RENDER, "builtin:demo", [7, 8]),
        (TokenSource.ENGINE_TOKENIZE, None, [7, 8]),
    ],
)
async def test_generated_text_is_encoded_by_the_tokenizer_of_its_prompt(threads, source, local, ids):
    encode = encoder(threads, Engines(tokenize={"tokens": [7, 8]}), local and load_local(local))
    found = await encode.encode_reply("Hello there", chat(), source)
    assert found == (ids and pack(ids))


async def test_generated_text_is_encoded_here_or_not_at_all(threads):
    encode = encoder(threads, Engines(), load_local("builtin:demo"))
    assert await encode.encode_reply("Hello there", chat(), TokenSource.LOCAL)
    assert await encode.encode_reply("Hello there", chat(), TokenSource.ENGINE_RENDER) is None


async def test_numbers_beyond_64_bits_are_no_reason_to_fail(threads):
    engines = Engines(render=EngineUnavailable("forbidden", 403))
    huge = {"messages": [{"role": "user", "content": "hi", "big": 10**30}]}
    odd = ChatRequest(Endpoint.CHAT, b"", b"{}", huge, [], ModelId("m"), False, False, RequestId("r"), None, 0.0)
    assert (await encoder(threads, engines).encode(odd)).source is TokenSource.TEXT
