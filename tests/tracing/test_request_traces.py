"""What a trace shows of a request."""

import pytest
from otlp_collector import CLIENT, FAILED, INTERNAL, SERVER
from raw_http import Connection, post
from running_gateway import CHAT, COMPLETIONS, eventually
from scripted_engine import STREAM_HEAD, chunk, response
from tenancy import ask_as, sections, tenant

STAGES = ["admission", "parse", "canon", "encode", "hash", "place", "relay", "settle"]
WORDS = "Where is the parcel that I sent to the customer in March, please? " * 10


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_span_for_the_request_and_one_below_it_for_every_stage(start, collector, engine, stream):
    gateway = await start(engine)
    answer = await gateway.ask(WORDS, stream=stream, headers={"x-request-id": "the-request"})
    assert answer.status_code == 200
    trace = await collector.trace("the-request")
    request = trace.request
    assert (request.name, request.kind, request.parent, request.status) == ("chat demo", SERVER, "", 0)
    assert trace.names() == STAGES
    for span in trace.children:
        assert span.kind == (CLIENT if span.name == "relay" else INTERNAL)
        assert request.began <= span.began <= span.ended <= request.ended
        assert span.status == 0
    for before, after in zip(trace.children, trace.children[1:], strict=False):
        assert before.ended <= after.began
    relay = trace.child("relay")
    if stream:
        # The replica's time to the first byte is noted in milliseconds.
        assert relay.began <= relay.events["first_byte"] <= relay.ended + 2_000_000
        ttft_seconds = relay.attributes["gateway.ttft_seconds"]
        assert ttft_seconds > 0
        assert relay.events["first_byte"] == relay.began + round(ttft_seconds * 1e9)
    else:
        assert not relay.events


async def test_the_attributes_are_what_the_answer_says(start, collector, engine):
    gateway = await start(engine, **sections(tenant("acme")))
    await ask_as(gateway, "acme")
    answer = await ask_as(gateway, "acme", headers={"x-request-id": "second"})
    usage = answer.json()["usage"]
    trace = await collector.trace("second")
    said = trace.request.attributes
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    expected = {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.path": CHAT,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "demo",
        "gen_ai.request.stream": False,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "gateway.tenant.id": "acme",
        "gateway.replica": "r0",
        "gateway.decision": "warm",
        "gateway.prefix.predicted_tokens": int(answer.headers["x-gateway-prefix-tokens"]),
        "gateway.prefix.confirmed_tokens": usage["prompt_tokens_details"]["cached_tokens"],
        "gateway.ending": "complete",
    }
    assert {name: said.get(name) for name in expected} == expected
    (space,) = (await gateway.admin.get("/admin/api/spaces")).json()["spaces"]
    assert said["gateway.space.id"] == space["id"]
    called = trace.child("relay").attributes
    assert called["http.response.status_code"] == 200
    assert f"http://{called['server.address']}:{called['server.port']}" == engine.url
    assert trace.request.resource["service.name"] == "prefix-gateway"


async def test_completions_are_named_as_such(start, collector, engine):
    gateway = await start(engine)
    await gateway.http.post(COMPLETIONS, json={"model": "demo", "prompt": "Hello"}, headers={"x-request-id": "c"})
    assert (await collector.trace("c")).request.name == "text_completion demo"


async def test_every_attempt_has_a_span_of_its_own(start, collector, scripted, engine):
    gone = scripted.url
    gateway = await start(scripted, engine, relay={"retries": 2}, placement={"policy": "round_robin"})
    await scripted.stop()
    for number in range(2):
        assert (await gateway.ask(headers={"x-request-id": f"r{number}"})).status_code == 200
    traces = [await collector.trace(f"r{number}") for number in range(2)]
    (trace,) = [trace for trace in traces if len(trace.all("relay")) == 2]
    failed, answered = trace.all("relay")
    assert f"http://{failed.attributes['server.address']}:{failed.attributes['server.port']}" == gone
    assert (failed.status, failed.attributes["error.type"]) == (FAILED, "not_connected")
    assert (answered.status, answered.attributes["gateway.replica"]) == (0, "r1")
    assert [span.attributes["http.request.resend_count"] for span in (failed, answered)] == [0, 1]
    assert trace.names() == [*STAGES[:6], "relay", "hash", "place", "relay", "settle"]
    assert trace.request.status == 0
    parents = {dict(sent.headers)[b"traceparent"].decode().split("-")[2] for sent in engine.requests}
    assert answered.id in parents
    assert failed.id not in parents


@pytest.mark.parametrize(
    ("body", "headers", "status", "stage", "name"),
    [
        (b'{"model": "demo"', {}, 400, "parse", "chat"),
        (b'{"model": "an-invention", "messages": []}', {}, 404, "parse", "chat"),
        (b"{}", {"content-type": "text/plain"}, 415, "parse", "chat"),
        (b"{}", {"authorization": "Bearer pgw_nobodys-key-at-all-here"}, 401, "admission", "chat"),
    ],
    ids=["not-json", "unknown-model", "media", "no-key"],
)
async def test_a_refusal_shows_the_stage_that_refused(start, collector, engine, body, headers, status, stage, name):
    gateway = await start(engine, **sections(tenant("acme")))
    known = {"authorization": "Bearer pgw_acme-key-of-this-test", "content-type": "application/json"}
    answer = await gateway.http.post(CHAT, content=body, headers=known | headers | {"x-request-id": "refused"})
    assert answer.status_code == status
    trace = await collector.trace("refused")
    assert (trace.request.name, trace.request.attributes["http.response.status_code"]) == (name, status)
    assert trace.request.attributes["error.type"] == answer.json()["error"]["code"]
    assert trace.names() == STAGES[: STAGES.index(stage) + 1]
    assert trace.children[-1].status == FAILED
    assert trace.request.status == 0  # a client's mistake is no failure of the server


async def test_personal_data_that_is_blocked_shows_in_its_stage(start, collector, engine):
    gateway = await start(engine, personal_data={"mode": "block"})
    messages = [{"role": "system", "content": "Write to jane.doe@example.com."}, {"role": "user", "content": "Hi"}]
    answer = await gateway.ask(messages=messages, headers={"x-request-id": "blocked"})
    assert answer.status_code == 400
    trace = await collector.trace("blocked")
    assert trace.names() == ["admission", "parse", "canon"]
    assert trace.child("canon").status == FAILED


async def test_no_replica_shows_where_there_was_none_to_place_at(start, collector, scripted):
    await scripted.stop()
    gateway = await start(scripted)
    assert (await gateway.ask(headers={"x-request-id": "none"})).status_code == 503
    trace = await collector.trace("none")
    assert trace.names() == ["admission", "parse", "canon", "encode", "place"]
    assert (trace.request.status, trace.request.attributes["error.type"]) == (FAILED, "no_replica")


@pytest.mark.parametrize(
    ("pieces", "status", "failure"),
    [
        ((response(b"{}", status="500 Odd"),), 500, "500"),
        ((STREAM_HEAD, chunk(b"data: {}\n\n")), 200, "broken"),
        ((b"",), 502, "broken"),
    ],
    ids=["error-500", "mid-stream", "before-the-answer"],
)
async def test_a_replica_that_fails_is_seen_at_the_call(start, collector, scripted, pieces, status, failure):
    gateway = await start(scripted)
    scripted.says(*pieces, then_close=True)
    answer = await gateway.ask(stream=True, headers={"x-request-id": "failed"})
    assert answer.status_code == status
    trace = await collector.trace("failed")
    assert trace.child("relay").status == FAILED
    assert trace.child("relay").attributes["error.type"] == failure
    assert trace.request.status == (FAILED if status >= 500 else 0)


async def test_a_client_that_leaves_is_no_failure(start, collector, scripted):
    gateway = await start(scripted)
    scripted.says(STREAM_HEAD + chunk(b"data: {}\n\n"), b"", pause=30)
    client = await Connection.open(gateway.port)
    body = b'{"model":"demo","stream":true,"messages":[{"role":"user","content":"Hi"}]}'
    await client.send(post(CHAT, body, "x-request-id: left"))
    await eventually(lambda: bool(scripted.received))
    client.abort()
    trace = await collector.trace("left")
    assert trace.child("relay").attributes["gateway.ending"] == "client_gone"
    assert (trace.child("relay").status, trace.request.status) == (0, 0)


async def test_a_client_that_disconnects_while_sending_is_traced_up_to_there(start, collector, scripted):
    gateway = await start(scripted)
    client = await Connection.open(gateway.port)
    await client.send(post(CHAT, b"x" * 1000)[:-500])
    await client.send(b"x")
    client.abort()
    trace = await collector.only_trace()
    assert trace.names() == ["admission"]
    assert trace.request.attributes == {"gateway.ending": "abandoned"}


async def test_filling_caches_is_not_traced(start, collector, engine):
    gateway = await start(engine)
    prefixes = [{"model": "demo", "messages": [{"role": "system", "content": WORDS}]}]
    job = (await gateway.admin.post("/admin/api/warm", json={"prefixes": prefixes})).json()["id"]

    async def done() -> bool:
        return (await gateway.admin.get(f"/admin/api/warm/{job}")).json()["state"] == "done"

    await eventually(done)
    await gateway.ask(headers={"x-request-id": "a-client"})
    trace = await collector.trace("a-client")
    assert {span.trace for span in collector.spans} == {trace.request.trace}
    assert len(engine.requests) == 2
