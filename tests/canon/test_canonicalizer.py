"""The front of canonicalization: modes, context memory and a store that may fail, and what becomes of the request."""

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec
import pytest

from gateway.canon.canonicalizer import Canonicalizer
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import RuleMode, RuleName
from gateway.core.ids import ModelId, RequestId, Target
from gateway.core.prompt import LaterSystem
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.tenant import EVERYBODY
from gateway.explain.prompt_text import prompt_text
from gateway.routing.fair_threads import FairThreads

MODEL = ModelId("m")
SUFFIX = {"m": {RuleName.DYNAMIC_SUFFIX: RuleMode.APPLY}}


class Texts:
    def token_counter(self, model: ModelId, tenant: str) -> None:
        return None

    def later_system(self, model: ModelId) -> LaterSystem:
        return "in_place"

    def context_limit(self, model: ModelId) -> int:
        return 0


class Store:
    """A shared store, with what was asked of it."""

    def __init__(self, blocks: Mapping[bytes, str] | None = None) -> None:
        self.blocks = dict(blocks or {})
        self.fetched: list[Sequence[bytes]] = []

    async def fetch(self, keys: Sequence[bytes]) -> Mapping[bytes, str]:
        self.fetched.append(keys)
        await asyncio.sleep(0)
        return {key: self.blocks[key] for key in keys if key in self.blocks}

    def keep(self, blocks: Mapping[bytes, str]) -> None:
        self.blocks |= blocks


@pytest.fixture
def build():
    threads = FairThreads(1, 2**20)
    yield lambda store=None, **settings: Canonicalizer(
        CanonSettings(**settings), SUFFIX, texts=Texts(), store=store, threads=threads
    )
    threads.shutdown()


def turn(number: int, *, padding: int = 0, headers: Sequence[tuple[bytes, bytes]] = ()) -> ChatRequest:
    """The request of one turn of a conversation, each with another second."""
    messages = [
        {"role": "system", "content": f"Current time: {datetime.now(UTC):%Y-%m-%d %H:%M}:{number:02}\nBe kind."},
        *(
            message
            for past in range(number)
            for message in (
                {"role": "user", "content": f"Question {past}?" + "x" * padding},
                {"role": "assistant", "content": f"Answer {past}."},
            )
        ),
        {"role": "user", "content": f"Question {number}?" + "x" * padding},
    ]
    fields = {"model": "m", "messages": messages}
    body = json.dumps(fields).encode()
    return ChatRequest(
        Endpoint.CHAT, b"", body, json.loads(body), list(headers), MODEL, False, False, RequestId("r"), None, 0.0
    )


def texts(request: ChatRequest) -> list[str]:
    assert json.loads(request.body) == request.fields
    return [message["content"] for message in request.fields["messages"]]


async def test_what_was_put_behind_a_message_comes_back_there(build):
    canonicalizer = build()
    turns = [texts((await canonicalizer.canonical(turn(number))).request) for number in range(4)]
    for before, after in itertools.pairwise(turns):
        assert after[: len(before)] == before


async def test_what_was_put_behind_messages_is_recorded_by_its_place_and_length(build):
    canonicalizer = build()
    await canonicalizer.canonical(turn(0))
    found = await canonicalizer.canonical(turn(1))
    sent = texts(found.request)
    assert [index for index, _ in found.record.blocks] == [1, 3]
    for number, (index, characters) in enumerate(found.record.blocks):
        assert sent[index][: len(sent[index]) - characters] == f"Question {number}?"


async def test_in_content_of_several_parts_the_recorded_length_is_that_of_the_text_they_make(build):
    request = turn(0)
    fields = dict(request.fields)
    parts = [{"type": "text", "text": "Look at this."}, {"type": "text", "text": "What is it?"}]
    fields["messages"] = [fields["messages"][0], {"role": "user", "content": parts}]
    body = json.dumps(fields).encode()
    found = await build().canonical(msgspec.structs.replace(request, body=body, fields=json.loads(body)))
    ((index, characters),) = found.record.blocks
    text = prompt_text(Endpoint.CHAT, found.request.fields).messages[index].text
    assert text[: len(text) - characters] == "Look at this.\nWhat is it?"


async def test_another_gateway_finds_it_in_the_store(build):
    store = Store()
    one, other = build(store), build(store)
    first = texts((await one.canonical(turn(0))).request)
    found = await other.canonical(turn(1))
    assert texts(found.request)[:2] == first
    assert not found.record.context_lost
    # What is known by now is not asked for again.
    asked = len(store.fetched)
    await other.canonical(turn(1))
    assert len(store.fetched) == asked


async def test_without_what_was_lost_the_conversation_goes_on(build):
    one, other = build(Store()), build(Store())
    await one.canonical(turn(0))
    lost = await other.canonical(turn(1))
    assert lost.record.context_lost
    again = await other.canonical(turn(2))
    assert not again.record.context_lost
    assert texts(again.request)[:4] == texts(lost.request)


async def test_long_prompts_are_worked_on_elsewhere_with_the_same_result(build):
    canonicalizer = build()
    short = [texts((await canonicalizer.canonical(turn(number))).request)[-1][-60:] for number in range(2)]
    long = [texts((await canonicalizer.canonical(turn(number, padding=90_000))).request)[-1][-60:] for number in (0, 1)]
    assert short == long


async def test_what_is_handed_over_has_the_body_that_was_asked_only_if_it_was_changed(build):
    canonicalizer = build()
    request = turn(0)
    found = await canonicalizer.canonical(request)
    assert found.record.asked == request.body
    assert found.edits.keys() == {RuleName.DYNAMIC_SUFFIX}
    off = turn(0, headers=[(b"x-gateway-canonical", b"OFF")])
    found = await canonicalizer.canonical(off)
    assert found.request is off
    assert found.record.asked == b""
    assert set(found.record.modes) == {RuleMode.OFF}


async def test_what_the_gateway_sends_to_warm_a_cache_is_left_as_it_is(build):
    request = turn(0)
    warming = ChatRequest(
        **{name: getattr(request, name) for name in ChatRequest.__slots__} | {"warmup_target": Target("r0", 0)}
    )
    assert (await build().canonical(warming)).request is warming


async def test_other_settings_are_taken_and_conversations_go_on(build):
    canonicalizer = build()
    first = texts((await canonicalizer.canonical(turn(0))).request)
    canonicalizer.configure(CanonSettings(memory_mib=1), SUFFIX)
    assert texts((await canonicalizer.canonical(turn(1))).request)[:2] == first
    canonicalizer.configure(CanonSettings(), {})
    request = turn(2)
    assert (await canonicalizer.canonical(request)).request is request


async def test_nothing_is_asked_of_the_store_where_nothing_varies(build):
    store = Store()
    request = turn(0)
    request.fields["messages"][0]["content"] = "Be kind."  # type: ignore[index]
    assert (await build(store).canonical(request)).request is request
    assert store.fetched == []
    assert request.caller is EVERYBODY
