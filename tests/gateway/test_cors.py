"""Cross-origin requests: which answers browsers may show to pages of other origins, byte by byte."""

import pytest
from raw_http import post
from running_gateway import CHAT, RunningGateway
from scripted_engine import REPLY, response
from tenancy import SECRET, key, tenant

APP, OTHER = "https://app.example.com", "https://other.example.com"
GOOD = b'{"model":"demo","messages":[{"role":"user","content":"Hi"}]}'
STREAM = GOOD[:-1] + b',"stream":true}'


@pytest.fixture
async def open_to_app(start_engine, start_gateway) -> RunningGateway:
    """A gateway that pages of one origin may use; asks for keys."""
    return await start_gateway(
        await start_engine(),
        server={"cors_origins": (APP,)},
        tenants=[tenant("acme") | {"requests_per_second": 1000}, tenant("slow") | {"requests_per_second": 1}],
        spaces={"secret": SECRET},
    )


def preflight(origin: str, method: str = "POST", headers: str = "authorization,content-type") -> dict[str, str]:
    return {"origin": origin, "access-control-request-method": method, "access-control-request-headers": headers}


def readable_by(answer, origin: str) -> bool:
    """Whether a browser shows an answer to a page: exactly one header, with its origin or ``*``."""
    reported = answer.headers.get_list("access-control-allow-origin")
    return reported in ([origin], ["*"])


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key(name)}", "content-type": "application/json"}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/models", "/v1/models/demo", "/nothing"])
async def test_preflight_needs_no_key(open_to_app, path):
    answer = await open_to_app.http.options(
        path, headers=preflight(APP, headers="Authorization, content-type,x-session-id")
    )
    assert (answer.status_code, answer.content) == (204, b"")
    assert readable_by(answer, APP)
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type, x-session-id"
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["vary"] == "origin"
    assert "access-control-allow-credentials" not in answer.headers


async def test_preflight_allows_no_headers_of_proxies_and_no_nonsense(open_to_app):
    asked = "x-forwarded-for,forwarded,x-tenant-id,x-stainless-os,,a b,x-request-id," + "y" * 300
    answer = await open_to_app.http.options(CHAT, headers=preflight(APP, headers=asked))
    assert answer.headers["access-control-allow-headers"] == "x-stainless-os, x-request-id"
    many = ",".join(f"x-{number}" for number in range(500))
    answer = await open_to_app.http.options(CHAT, headers=preflight(APP, headers=many))
    assert len(answer.headers["access-control-allow-headers"].split(",")) == 64


@pytest.mark.parametrize("origin", [OTHER, "null", APP + ":8443", "http://app.example.com", APP + ".evil.net", ""])
async def test_preflight_of_another_origin_is_refused_and_counted(open_to_app, origin):
    answer = await open_to_app.http.options(CHAT, headers=preflight(origin))
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "origin_not_allowed"
    assert "server.cors_origins" in answer.json()["error"]["message"]
    assert not readable_by(answer, origin)
    metrics = await open_to_app.metrics()
    assert metrics.value("gateway_requests_total", endpoint="other", status="403") == 1


async def test_preflight_where_nothing_is_configured_is_refused(gateway):
    answer = await gateway.http.options(CHAT, headers=preflight(APP))
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_options_that_is_no_preflight_is_a_wrong_method(open_to_app):
    assert (await open_to_app.http.options(CHAT)).status_code == 405


async def test_answers_and_streams_are_readable(open_to_app):
    for body in (GOOD, STREAM):
        answer = await open_to_app.http.post(CHAT, content=body, headers=bearer("acme") | {"origin": APP})
        assert answer.status_code == 200
        assert readable_by(answer, APP)
        assert answer.headers["access-control-expose-headers"] == "*"
        assert answer.headers["vary"] == "origin"
        assert answer.headers["x-gateway-decision"]
    models = await open_to_app.http.get("/v1/models", headers=bearer("acme") | {"origin": APP})
    assert models.status_code == 200
    assert readable_by(models, APP)


async def test_another_origin_is_served_and_cannot_read(open_to_app):
    answer = await open_to_app.http.post(CHAT, content=GOOD, headers=bearer("acme") | {"origin": OTHER})
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["vary"] == "origin"


async def test_errors_are_readable(open_to_app):
    origin = {"origin": APP}
    http, json = open_to_app.http, {"content-type": "application/json"}
    answers = {
        401: await http.post(CHAT, content=GOOD, headers=json | origin),
        404: await http.get("/nothing", headers=origin),
        405: await http.put(CHAT, headers=origin),
        400: await http.post(CHAT, content=b"{", headers=bearer("acme") | origin),
        415: await http.post(CHAT, content=GOOD, headers={"authorization": f"Bearer {key('acme')}"} | origin),
    }
    for _ in range(3):
        limited = await http.post(CHAT, content=GOOD, headers=bearer("slow") | origin)
    answers[429] = limited
    for status, answer in answers.items():
        assert answer.status_code == status, answer.text
        assert readable_by(answer, APP), status
        assert answer.headers["access-control-expose-headers"] == "*"
    assert limited.headers["retry-after"]


async def test_refusals_of_the_http_layer_are_readable(open_to_app, connect):
    origin = f"origin: {APP}"
    head = f"POST {CHAT} HTTP/1.1\r\nhost: g\r\n{origin}\r\nauthorization: Bearer {key('acme')}\r\n".encode()
    long_first = f"GET /v1/models HTTP/1.1\r\nhost: g\r\nx-long: {'y' * 70_000}\r\n{origin}\r\n\r\n".encode()
    for data, status in (
        (long_first, 431),  # as Chromium orders them
        (head + b"x-long: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (head + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (head + b"bad\0header: 1\r\n\r\n", 400),
    ):
        client = await connect(open_to_app)
        await client.send(data)
        answer = await client.answer()
        assert answer.status == status
        assert answer.header("access-control-allow-origin") == APP
        assert answer.header("vary") == "origin"
    client = await connect(open_to_app)
    await client.send(b"\x16\x03\x01\r\n\r\n")
    answer = await client.answer()
    assert answer.status == 400
    assert answer.header("access-control-allow-origin") is None


async def test_every_origin(start_gateway, engine, connect):
    gateway = await start_gateway(engine, server={"cors_origins": ("*",)})
    for origin in (APP, OTHER, "null"):
        asked = await gateway.http.options(CHAT, headers=preflight(origin))
        assert asked.status_code == 204
        answer = await gateway.http.post(
            CHAT, content=GOOD, headers={"content-type": "application/json", "origin": origin}
        )
        assert answer.headers.get_list("access-control-allow-origin") == ["*"]
        assert "access-control-allow-credentials" not in {*asked.headers, *answer.headers}
    client = await connect(gateway)
    await client.send(b"\x16\x03\x01\r\n\r\n")
    assert (await client.answer()).header("access-control-allow-origin") == "*"


async def test_what_an_engine_says_about_origins_gives_way(scripted, start_gateway):
    """vLLM allows every origin, with credentials, by default; two values would make browsers refuse the answer."""
    scripted.says(
        response(
            REPLY,
            "access-control-allow-origin: *",
            "Access-Control-Allow-Credentials: true",
            "access-control-expose-headers: x-engine",
        )
    )
    gateway = await start_gateway(scripted, server={"cors_origins": (APP,)})
    answer = await gateway.http.post(CHAT, content=GOOD, headers={"content-type": "application/json", "origin": APP})
    assert answer.status_code == 200
    assert answer.headers.get_list("access-control-allow-origin") == [APP]
    assert answer.headers.get_list("access-control-expose-headers") == ["*"]
    assert "access-control-allow-credentials" not in answer.headers


async def test_a_stream_arrives_piece_by_piece(start_engine, start_gateway, connect):
    gateway = await start_gateway(await start_engine(decode_ms=40.0), server={"cors_origins": (APP,)})
    client = await connect(gateway)
    body = STREAM[:-1] + b',"max_tokens":20,"ignore_eos":true}'
    await client.send(post(CHAT, body, f"origin: {APP}"))
    answer = await client.answer()
    assert answer.header("access-control-allow-origin") == APP
    assert len(answer.pieces) > 2
