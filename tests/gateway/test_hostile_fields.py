"""Fields made to be expensive, or to be of use for more than their request: refused or harmless, for all others too."""

import asyncio
import json
import time

import pytest
from scripted_engine import ScriptedEngine, response
from tenancy import key, sections, tenant

from gateway import trip

LONG = b"word " * 400_000
"""Two megabytes: work that is done for all of it as often as a field is repeated takes many seconds."""

REPEATED = {
    "stream_options": b'"stream_options":{},' * 12_000,
    "escaped": b'"stream\\u005foptions":{"include_usage":false},' * 12_000,
    "cache_salt": b'"cache_salt":"x",' * 12_000,
    "include_usage": b'"stream_options":{%b"x":"%b"},' % (b'"include_usage":false,' * 12_000, LONG),
    "continuous_usage_stats": b'"stream_options":{%b"x":"%b"},' % (b'"continuous_usage_stats":true,' * 12_000, LONG),
}


async def longest_standstill(work: asyncio.Task) -> float:
    """The longest time in which this process did nothing else while something was done."""
    longest = 0.0
    before = time.monotonic()
    while not work.done():
        await asyncio.sleep(0.01)
        now = time.monotonic()
        longest, before = max(longest, now - before), now
    return longest


@pytest.mark.parametrize("members", REPEATED.values(), ids=REPEATED.keys())
async def test_a_repeated_field_holds_nobody_up(scripted, start_gateway, members):
    gateway = await start_gateway(scripted, **sections(tenant("a")))
    body = b"{" + members + b'"stream":true,' + b'"model":"demo","messages":[{"role":"user","content":"%b"}]}' % LONG
    asked = asyncio.create_task(gateway.send(body, authorization=f"Bearer {key('a')}"))
    standstill = await longest_standstill(asked)
    assert (await asked).status_code == 200
    sent = json.loads(scripted.received[-1].body)
    expected = json.loads(body) | {"stream_options": {"include_usage": True}, "cache_salt": sent["cache_salt"]}
    assert {**sent, "stream_options": {"include_usage": sent["stream_options"]["include_usage"]}} == expected
    assert standstill < 2


async def test_the_body_is_made_once_however_many_replicas_are_tried(start_gateway, closing, monkeypatch):
    made = []
    make = trip.engine_body
    monkeypatch.setattr(trip, "engine_body", lambda *given: made.append(given) or make(*given))
    engines = [ScriptedEngine() for _ in range(3)]
    for engine in engines:
        await engine.start()
        closing.push_async_callback(engine.stop)
        engine.says(response(b"{}", status="503 Service Unavailable"))
    gateway = await start_gateway(*engines, **sections(tenant("a")))
    body = b'{"stream":true,"model":"demo","messages":[{"role":"user","content":"Hi"}]}'
    answer = await gateway.send(body, authorization=f"Bearer {key('a')}")
    assert answer.status_code == 503
    (bodies,) = {tuple(received.body for received in engine.received) for engine in engines}
    assert len(bodies) == 1
    assert json.loads(bodies[0])["stream_options"] == {"include_usage": True}
    assert len(made) == 1
