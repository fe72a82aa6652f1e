"""Whose trace it is: what the client sends, what the engine gets, and which requests are recorded."""

import contextlib

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from raw_http import Connection, post
from running_gateway import CHAT

from gateway.telemetry.tracing.sampling import Tracing
from gateway.telemetry.tracing.trace_context import parent_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY = b'{"model":"demo","messages":[{"role":"user","content":"Hi"}]}'


def sent(engine, name):
    """Values of a header of the last request the engine got."""
    return [value.decode() for key, value in engine.requests[-1].headers if key.decode().lower() == name]


async def ask(gateway, *headers):
    """With headers as lines, which may repeat."""
    client = await Connection.open(gateway.port)
    with contextlib.closing(_Aborted(client)):
        await client.send(post(CHAT, BODY, "x-request-id: asked", *headers))
        assert (await client.answer()).status == 200


class _Aborted:
    def __init__(self, connection):
        self.close = connection.abort


async def test_the_clients_trace_goes_on_and_the_engines_part_hangs_below_the_call(start, collector, engine):
    gateway = await start(engine, tracing={"sample_ratio": 0.0})
    await ask(gateway, f"traceparent: 00-{TRACE}-{SPAN}-01", "tracestate: vendor=a:b,other=1")
    trace = await collector.trace("asked")
    assert (trace.request.trace, trace.request.parent) == (TRACE, SPAN)
    assert trace.request.state == "vendor=a:b,other=1"
    assert sent(engine, "traceparent") == [f"00-{TRACE}-{trace.child('relay').id}-01"]
    assert sent(engine, "tracestate") == ["vendor=a:b,other=1"]


async def test_several_tracestate_headers_are_one(start, collector, engine):
    gateway = await start(engine)
    await ask(gateway, f"traceparent: 00-{TRACE}-{SPAN}-01", "tracestate: a=1", "tracestate: b=2")
    await collector.trace("asked")
    assert sent(engine, "tracestate") == ["a=1,b=2"]


async def test_what_the_client_does_not_record_is_not_recorded_and_travels_on_untouched(start, collector, engine):
    gateway = await start(engine)
    await ask(gateway, f"traceparent: 00-{TRACE}-{SPAN}-00", "tracestate: a=1")
    assert sent(engine, "traceparent") == [f"00-{TRACE}-{SPAN}-00"]
    assert sent(engine, "tracestate") == ["a=1"]
    await gateway.ask(headers={"x-request-id": "another"})
    trace = await collector.trace("another")
    assert {span.trace for span in collector.spans} == {trace.request.trace}


async def test_a_trace_begins_here_if_the_client_sends_none(start, collector, engine):
    gateway = await start(engine)
    await ask(gateway)
    trace = await collector.trace("asked")
    assert sent(engine, "traceparent") == [f"00-{trace.request.trace}-{trace.child('relay').id}-01"]
    assert sent(engine, "tracestate") == []


async def test_requests_that_are_left_out_are_left_out_by_the_engine_too(start, collector, engine):
    gateway = await start(engine, tracing={"sample_ratio": 0.0})
    await ask(gateway)
    (reported,) = sent(engine, "traceparent")
    assert reported.endswith("-00")
    assert parent_of([(b"traceparent", reported.encode())]) is not None
    await gateway.gateway.stop()
    assert collector.spans == []


@pytest.mark.parametrize(
    "headers",
    [
        ["traceparent: nonsense"],
        ["traceparent:"],
        [f"traceparent: 00-{TRACE}-{SPAN}"],
        [f"traceparent: 00-{TRACE}-{SPAN}-01-more"],
        [f"traceparent: ff-{TRACE}-{SPAN}-01"],
        [f"traceparent: 00-{TRACE.upper()}-{SPAN}-01"],
        [f"traceparent: 00-{'0' * 32}-{SPAN}-01"],
        [f"traceparent: 00-{TRACE}-{'0' * 16}-01"],
        [f"traceparent: 00-{TRACE}-{SPAN}-01", f"traceparent: 00-{TRACE}-{SPAN}-01"],
        [f"traceparent: 00-{TRACE}-{SPAN}-01\xe9"],
        ["traceparent: " + "0" * 4000],
    ],
    ids=["word", "empty", "short", "long", "version", "capitals", "no-trace", "no-span", "twice", "bytes", "huge"],
)
async def test_what_is_no_traceparent_begins_a_new_trace(start, collector, engine, headers):
    gateway = await start(engine)
    await ask(gateway, *headers, "tracestate: a=1")
    trace = await collector.trace("asked")
    assert trace.request.parent == ""
    assert trace.request.trace != TRACE
    assert sent(engine, "traceparent") == [f"00-{trace.request.trace}-{trace.child('relay').id}-01"]
    assert sent(engine, "tracestate") == []


def test_a_later_version_is_read_as_far_as_it_is_known():
    parent = parent_of([(b"traceparent", f"cc-{TRACE}-{SPAN}-ff-what-comes".encode())])
    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}", parent.flags) == (TRACE, SPAN, 3)


async def test_with_traces_turned_off_the_clients_headers_travel_on_untouched(start, engine):
    gateway = await start(engine, tracing=None)
    await ask(gateway, "traceparent: whatever", "tracestate: it says")
    assert sent(engine, "traceparent") == ["whatever"]
    assert sent(engine, "tracestate") == ["it says"]
    await ask(gateway)
    assert sent(engine, "traceparent") == []


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.3, 1.0])
def test_the_share_is_decided_as_opentelemetry_decides_it(ratio):
    others = TraceIdRatioBased(ratio)
    written = []

    class Sink:
        write = written.append

    tracing = Tracing(ratio, Sink())
    traced = set()
    asked = 2000
    unrecorded = 0
    for _ in range(asked):
        trace = tracing.begin([])
        before = len(written)
        trace.end()
        if len(written) > before:
            traced.add(written[-1].trace_id)
            assert others.should_sample(None, written[-1].trace_id, "x").decision is Decision.RECORD_AND_SAMPLE
        else:
            unrecorded += 1
            (reported,) = [value for name, value in trace.relay(None, "", 0) if name == b"traceparent"]
            assert others.should_sample(None, int(reported[3:35], 16), "x").decision is Decision.DROP
    assert len(traced) + unrecorded == asked
    assert abs(len(traced) / asked - ratio) < 0.06
