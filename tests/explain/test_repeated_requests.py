"""Requests whose explanation is that of an earlier one are sent as references, and explained like any other."""

import itertools
import random

import msgspec
import orjson
import pytest
from explain_harness import ClientHarness, eventually
from explained_requests import request

from gateway.core.canonical import Canonicalized, RuleMode, RuleName
from gateway.core.explanation import CacheEvent, CacheHistory, ReplicaPrefix, ReplyChoice
from gateway.core.request import RequestIdentity
from gateway.explain.worker import repeats
from gateway.explain.worker.explain_client import COMMAND
from gateway.explain.worker.explain_messages import CanonOptions
from gateway.explain.worker.send_buffer import sent_message

REUSED = {"predicted_tokens": 96, "cached_tokens": 96}
"""Of 100 tokens in blocks of 16."""

OBSERVED = tuple(RuleMode.OBSERVE for _ in RuleName)


def reused(number=0, text="Hello.", **fields):
    return request(text, **({"request_id": f"req-{number}", "at": 1_790_000_000.0 + number / 10} | REUSED | fields))


def traffic(seed, count=300):
    """Requests with a few prompts, of which most reuse all that there is; some at every edge of that."""
    chance = random.Random(seed)
    at = 1_790_000_000.0
    for number in range(count):
        at += chance.choice([0.01, 0.5, 5.0])
        prompt = chance.randrange(4)
        own = 90 + 7 * prompt
        blocks = (own - 1) // 16 * 16
        cached = chance.choice([blocks] * 8 + [0, 16, blocks - 16, None])
        predicted = chance.choice([blocks] * 8 + [0, 16])
        ids = b"".join((prompt * 1000 + each).to_bytes(4, "little") for each in range(own))
        yield request(
            f"Prompt {prompt}",
            request_id=f"req-{number}",
            at=at,
            parts=(ids,),
            own_tokens=own,
            prompt_tokens=own + chance.choice([0, 0, 0, 40]),
            cached_tokens=cached,
            predicted_tokens=predicted,
            tenant=chance.choice(["shop", "shop", "bank"]),
            replies=(ReplyChoice(chance.choice(["Yes.", "Yes.", "No."]), None),),
            replica=chance.choice(["r0", "r1"]),
            holders=(
                ReplicaPrefix("r0", 0, predicted),
                ReplicaPrefix("r1", 0, chance.choice([predicted, blocks]), 0.5),
            ),
            bypasses_cache=chance.random() < 0.03,
            is_blind=chance.random() < 0.03,
            seconds=chance.random(),
            measured=chance.random() < 0.1,
            canonical=Canonicalized(modes=OBSERVED),
        )


async def journal(folder, records, monkeypatch, *, whole):
    """What a real worker counts and shows of requests; ``whole``: none is sent as a reference."""
    with monkeypatch.context() as patch:
        if whole:
            patch.setattr(repeats, "identity_of", lambda record: None)
        canon = CanonOptions(b"{}", {})
        async with ClientHarness(folder, command=COMMAND, canon=canon, journal_requests=1000) as harness:
            await harness.summary()
            for record in records:
                harness.client.record_request(record)
            shown = orjson.loads(await harness.client.ask("requests", {"limit": "500"}))
            each = [orjson.loads(await harness.client.ask("request", {"id": row["id"]})) for row in shown["requests"]]
            summary = await harness.summary(window="24h")
            await eventually(lambda: not harness.client.awaits_reply)
            return shown, each, harness.counts.missed, {**summary, "covered_seconds": 0, "since": 0}


def without_reference(shown):
    """References name the earlier request that was compared: of equal ones that may be any."""
    return {name: value for name, value in shown.items() if name != "reference"}


async def test_every_request_is_explained_as_if_it_were_sent_as_a_whole(tmp_path, monkeypatch):
    records = list(traffic(3))
    (tmp_path / "some").mkdir()
    (tmp_path / "all").mkdir()
    referred = await journal(tmp_path / "some", records, monkeypatch, whole=False)
    whole = await journal(tmp_path / "all", records, monkeypatch, whole=True)
    assert referred[0] == whole[0]
    assert list(map(without_reference, referred[1])) == list(map(without_reference, whole[1]))
    assert referred[2:] == whole[2:]


async def test_the_third_of_equal_requests_is_referred_to_and_the_first_again_after_a_while(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        for number in range(6):
            harness.client.record_request(reused(number))
        await harness.missed(6 * 4)
        assert [each["id"] for each in harness.reported("explain")] == ["req-0", "req-1"]
        harness.client.record_request(reused(6, at=1_790_000_200.0))
        await harness.missed(7 * 4)
        assert harness.reported("explain")[-1]["id"] == "req-6"
        assert (await harness.summary())["requests"] == 7


async def test_a_prompt_is_known_from_its_first_request_that_reused_nothing(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        harness.client.record_request(reused(0, predicted_tokens=0, cached_tokens=0))
        for number in range(1, 4):
            harness.client.record_request(reused(number))
        await harness.missed(100 + 3 * 4)
        assert [each["id"] for each in harness.reported("explain")] == ["req-0", "req-1"]


@pytest.mark.parametrize("other", [{"tenant": "bank"}, {"measured": True}, {"block_size": 0, "is_blind": True}])
async def test_a_prompt_with_which_no_request_is_compared_is_new(tmp_path, other):
    """Of another tenant, of a measurement, and of a request that was placed blindly."""
    async with ClientHarness(tmp_path, command=COMMAND) as harness:
        await harness.summary()
        for number in range(2):
            harness.client.record_request(reused(number, **other))
        before = (await harness.missed(2 * 4)).copy()
        for number in range(2, 6):
            harness.client.record_request(reused(number))
        assert await harness.missed(6 * 4) - before == {"new_content": 4, "block_boundary": 3 * 4}


async def test_what_an_explanation_depends_on_is_sent_as_a_whole(tmp_path):
    others = [
        {"text": "Another text."},
        {"parts": (bytes(range(200)) * 2,)},
        {"tenant": "bank"},
        {"source": "batch"},
        {"session": "s1"},
        {"identity": RequestIdentity("s1", "agent")},
        {"dialect": "messages"},
        {"replica": "r9"},
        {"life": "b"},
        {"completion_tokens": 6},
        {"replies": (ReplyChoice("Bye.", None),)},
        {"canonical": Canonicalized(modes=(RuleMode.OFF,))},
        {"cached_tokens": 80},
        {"prompt": "support@2"},
        {"measured": True},
    ]
    numbers = itertools.count()
    async with ClientHarness(tmp_path) as harness:
        for _ in range(2):
            harness.client.record_request(reused(next(numbers)))
        for each in others:
            harness.client.record_request(reused(next(numbers), **each))
        await eventually(lambda: len(harness.reported("explain")) == 2 + len(others))


async def test_after_a_change_of_caches_or_settings_whole_requests_are_sent(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        for number in range(3):
            harness.client.record_request(reused(number))
        harness.client.record_event(CacheEvent(CacheHistory.RESTARTED, 1_790_000_001.0, "r0"))
        harness.client.record_request(reused(3))
        await eventually(lambda: [each["id"] for each in harness.reported("explain")] == ["req-0", "req-1", "req-3"])
        changed = harness.settings.model_copy(update={"gpu_hour_price": 3.0})
        harness.client.record_request(reused(4))
        await harness.client.configure(changed, {"demo": 2})
        harness.client.record_request(reused(5))
        await eventually(lambda: harness.reported("explain")[-1]["id"] == "req-5")


async def test_requests_that_refer_to_one_that_a_lost_process_knew_are_counted_as_unclassified(tmp_path):
    async with ClientHarness(tmp_path) as harness:
        for number in range(3):
            harness.client.record_request(reused(number))
        await harness.missed(3 * 4)
        harness.client.record_request(reused(3, text="die"))
        for number in range(4, 6):
            harness.client.record_request(reused(number))
        await eventually(lambda: harness.counts.missed["unclassified"] == 3 * 4)
        await eventually(lambda: harness.client.accepts_text)
        await harness.summary()
        harness.client.record_request(reused(6))
        await harness.missed(7 * 4)
        assert harness.reported("explain")[-1]["id"] == "req-6"
    assert harness.counts.skipped == 3


async def test_a_reference_to_an_unknown_request_is_counted_as_unclassified(tmp_path, monkeypatch):
    async with ClientHarness(tmp_path) as harness:
        for number in range(2):
            harness.client.record_request(reused(number))
        await harness.missed(2 * 4)
        with monkeypatch.context() as patch:
            patch.setattr(repeats.Repeats, "find", lambda *_: repeats.Referred(999, 0.0, TOTALS))
            harness.client.record_request(reused(2))
            await harness.summary()
        assert await harness.missed(3 * 4) == {"new_content": 8, "unclassified": 4}
    assert harness.counts.skipped == 1


async def test_references_fit_where_texts_do_not(tmp_path):
    async with ClientHarness(tmp_path, max_waiting_mib=1) as harness:
        await harness.summary()
        for number in range(2):
            harness.client.record_request(reused(number))
        harness.client.record_request(request("slow " + "x" * 600_000, request_id="large"))
        for number in range(3, 50):
            harness.client.record_request(reused(number))
        missed = await harness.missed(49 * 4 + 68)
    assert missed["unclassified"] == 0


TOTALS = sent_message(msgspec.structs.replace(reused(), body=b"")).totals
