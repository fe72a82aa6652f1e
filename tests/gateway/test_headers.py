"""Which headers travel on, and what the gateway says about its decision."""

import re

import pytest
from raw_http import post
from running_gateway import CHAT
from scripted_engine import REPLY, response

BODY = b'{"model":"demo","messages":[{"role":"user","content":"Hi"}]}'


async def test_end_to_end_headers_reach_the_engine(behind, scripted, connect):
    client = await connect(behind)
    await client.send(
        post(CHAT, BODY, "X-Vendor: one", "x-vendor: two", "X-Session-ID: s-1", "User-Agent: app/1.2", "accept: */*")
    )
    assert (await client.answer()).status == 200
    received = scripted.received[0]
    assert received.values("x-vendor") == ["one", "two"]
    assert received.values("x-session-id") == ["s-1"]
    assert received.values("user-agent") == ["app/1.2"]
    assert received.values("accept") == ["*/*"]
    assert received.values("content-type") == ["application/json"]
    assert received.values("content-length") == [str(len(BODY))]
    assert received.values("host") == [scripted.url.removeprefix("http://")]


async def test_header_values_keep_their_bytes(behind, scripted, connect):
    client = await connect(behind)
    await client.send(post(CHAT, BODY, "x-latin: caf\xe9", "x-utf: caf\xc3\xa9"))
    assert (await client.answer()).status == 200
    assert scripted.received[0].values("x-latin") == ["caf\xe9"]
    assert scripted.received[0].values("x-utf") == ["caf\xc3\xa9"]


async def test_hop_by_hop_request_headers_end_here(behind, scripted, connect):
    client = await connect(behind)
    await client.send(
        post(
            CHAT,
            BODY,
            "connection: keep-alive, X-Only-Here",
            "x-only-here: secret",
            "keep-alive: timeout=5",
            "te: trailers",
            "trailer: x-sum",
            "proxy-authorization: Basic eHg=",
            "proxy-connection: keep-alive",
            "accept-encoding: gzip",
        )
    )
    assert (await client.answer()).status == 200
    names = {name.lower() for name, _ in scripted.received[0].headers}
    assert not names & {
        "x-only-here",
        "keep-alive",
        "te",
        "trailer",
        "proxy-authorization",
        "proxy-connection",
    }
    assert scripted.received[0].values("accept-encoding") == ["identity"]
    assert "x-only-here" not in str(scripted.received[0].values("connection"))


async def test_engine_headers_reach_the_client_but_for_hop_by_hop(behind, scripted, connect):
    scripted.says(
        response(
            REPLY,
            "x-vllm: a",
            "set-cookie: one=1",
            "set-cookie: two=2",
            "Connection: X-Inner",
            "x-inner: secret",
            "keep-alive: timeout=5",
            "proxy-authenticate: Basic",
            "x-gateway-replica: forged",
            "x-request-id: forged",
            "x-latin: caf\xe9",
        )
    )
    client = await connect(behind)
    await client.send(post(CHAT, BODY, "x-request-id: mine"))
    answer = await client.answer()
    assert answer.status == 200
    assert answer.body == REPLY
    lines = answer.head.decode("latin-1").split("\r\n")
    assert [line for line in lines if line.startswith("set-cookie")] == ["set-cookie: one=1", "set-cookie: two=2"]
    assert "x-vllm: a" in lines
    assert answer.header("x-gateway-replica") == "r0"
    assert answer.header("x-request-id") == "mine"
    assert not any("forged" in line or "secret" in line for line in lines)
    assert answer.header("keep-alive") is None
    assert answer.header("proxy-authenticate") is None
    assert answer.header("content-length") == str(len(REPLY))
    assert sum(line.lower().startswith(("content-length:", "date:")) for line in lines) <= 2


async def test_header_the_engine_sends_outside_ascii_does_not_break_the_answer(behind, scripted):
    scripted.says(response(REPLY, "x-latin: caf\xe9", "x-after: here"))
    answer = await behind.send(BODY)
    assert answer.status_code == 200
    assert answer.headers["x-after"] == "here"


async def test_authorization_stays_here(gateway, engine):
    assert (await gateway.ask(headers={"authorization": "Bearer client-key"})).status_code == 200
    assert b"authorization" not in dict(engine.requests[0].headers)


async def test_authorization_is_forwarded_where_configured(start_gateway, engine):
    gateway = await start_gateway(engine, relay={"forward_authorization": True})
    await gateway.ask(headers={"authorization": "Bearer client-key"})
    assert dict(engine.requests[0].headers)[b"authorization"] == b"Bearer client-key"


CREDENTIALS = (
    "api-key",
    "cookie",
    "ocp-apim-subscription-key",
    "proxy-authorization",
    "x-amz-security-token",
    "x-api-key",
    "x-auth-token",
    "x-goog-api-key",
)


@pytest.mark.parametrize("api_key", [None, "engine-key"])
@pytest.mark.parametrize("forward", [False, True])
async def test_keys_in_headers_of_other_apis_stay_here_like_authorization(start_gateway, scripted, forward, api_key):
    replica = {"url": scripted.url, "id": "r0"} | ({"api_key": api_key} if api_key else {})
    gateway = await start_gateway(scripted, model={"replicas": [replica]}, relay={"forward_authorization": forward})
    await gateway.ask(headers=dict.fromkeys(CREDENTIALS, "client-key"))
    received = {name for name, value in scripted.received[0].headers if value == "client-key"}
    assert received == (set(CREDENTIALS) - {"proxy-authorization"} if forward and not api_key else set())


@pytest.mark.parametrize("forward", [False, True])
async def test_replica_key_is_sent_in_place_of_the_clients(start_gateway, scripted, forward):
    gateway = await start_gateway(
        scripted,
        model={"replicas": [{"url": scripted.url, "id": "r0", "api_key": "engine-key"}]},
        relay={"forward_authorization": forward},
    )
    await gateway.ask(headers={"authorization": "Bearer client-key"})
    assert scripted.received[0].values("authorization") == ["Bearer engine-key"]


@pytest.mark.parametrize("given", ["req-42", "a" * 128, "!#/:~", "task-42", "pgw_eu-1", "bearer", "ASIA-7"])
async def test_request_id_is_kept(gateway, engine, given):
    answer = await gateway.ask(headers={"x-request-id": given})
    assert answer.headers["x-request-id"] == given
    assert dict(engine.requests[0].headers)[b"x-request-id"] == given.encode()


KEYS_AS_IDS = [
    "sk-abc",
    "sk_live_1",
    "trace:sk-abc",
    "pgw-" + "a" * 43,
    "pgw_" + "a" * 43,
    "Bearer x",
    "bearer:x",
    "eyJhbGciOiJIUzI1NiJ9.e30.c2ln",
    "ghp_0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "hf_abc",
    "AIzaSy",
]


@pytest.mark.parametrize("given", ["", "two words", "a" * 129, "caf\xe9", *KEYS_AS_IDS])
async def test_request_id_that_cannot_be_used_is_replaced(gateway, engine, connect, given):
    client = await connect(gateway)
    await client.send(post(CHAT, BODY, f"x-request-id: {given}"))
    own = (await client.answer()).header("x-request-id")
    assert re.fullmatch(r"[\x21-\x7e]{8,128}", own)
    assert own != given
    assert [value for name, value in engine.requests[0].headers if name == b"x-request-id"] == [own.encode()]


async def test_request_id_is_made_where_there_is_none(gateway):
    ids = {(await gateway.ask()).headers["x-request-id"] for _ in range(5)}
    assert len(ids) == 5
    refused = await gateway.ask(messages=7)
    assert refused.status_code == 400
    assert refused.headers["x-request-id"]


async def test_answer_reports_the_decision(gateway, prose):
    text = prose(3, 200)
    cold = await gateway.ask(text, max_tokens=3)
    warm = await gateway.ask(text, max_tokens=3)
    for answer in (cold, warm):
        assert answer.headers["x-gateway-replica"] == "r0"
        assert int(answer.headers["x-gateway-prompt-tokens"]) == answer.json()["usage"]["prompt_tokens"]
    assert cold.headers["x-gateway-decision"] == "cold"
    assert cold.headers["x-gateway-prefix-tokens"] == "0"
    assert warm.headers["x-gateway-decision"] == "warm"
    held = int(warm.headers["x-gateway-prefix-tokens"])
    prompt = warm.json()["usage"]["prompt_tokens"]
    assert held == (prompt - 1) // 16 * 16
    assert held == warm.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert "x-gateway-tokens" not in warm.headers
    assert "x-gateway-error" not in warm.headers


async def test_stream_reports_the_decision_too(gateway, prose):
    answer = await gateway.ask(prose(3, 50), stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-gateway-decision"] == "cold"
    assert int(answer.headers["x-gateway-prompt-tokens"]) > 50
    assert "content-length" not in answer.headers
