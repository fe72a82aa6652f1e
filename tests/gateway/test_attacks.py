"""Attempts to get in without a key, or to get at what others cached: keys, headers, salts, raw HTTP."""

import base64
import json
from collections import defaultdict
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio
from api_errors import problem
from one_gateway import *  # noqa: F403
from raw_http import Connection, post
from running_gateway import CHAT, COMPLETIONS, RunningGateway, settings_for

from gateway.core.api_keys import hash_key, new_key
from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine

pytestmark = SHARED  # noqa: F405

FAST = {"prefill_rate": 1e6, "decode_ms": 0.0, "record_requests": 200}

ACME, ACME_LIMITED, ACME_EXPIRED, GLOBEX = (new_key() for _ in range(4))
UNKNOWN_KEY = new_key()
SECRET = "a secret of the gateway that nobody else has"
LONG = " ".join(f"number {number}" for number in range(60))

TENANTS = [
    {
        "id": "acme",
        "keys": [
            {"hash": hash_key(ACME), "id": "acme-ci", "scopes": ["de"]},
            {"hash": hash_key(ACME_LIMITED), "models": ["other"]},
            {"hash": hash_key(ACME_EXPIRED), "expires": "2020-01-01"},
        ],
    },
    {"id": "globex", "keys": [hash_key(GLOBEX)]},
]
LIMITS = {"tenants": TENANTS, "spaces": {"secret": SECRET}}
PROXY = {"tenants": [{"id": "acme"}, {"id": "globex"}], "admission": {"trusted_proxies": ["127.0.0.1"]}}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_guarded():
    engines = {name: SimulatedEngine(EngineConfig(model=name, **FAST)) for name in ("demo", "other")}
    for each in engines.values():
        await each.start()
    models = [
        {"id": name, "tokenizer": "builtin:demo", "replicas": [{"url": engine.url, "id": name}]}
        for name, engine in engines.items()
    ]
    gateway = RunningGateway(settings_for([], models=models, **LIMITS))
    gateway.engines = engines
    await gateway.start()
    yield gateway
    await gateway.stop()
    for each in engines.values():
        await each.kill()


@pytest.fixture
def guarded(shared_guarded):
    """Two models; keys are needed."""
    for each in shared_guarded.engines.values():
        each._app.requests.clear()
    return shared_guarded


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_proxied(shared):
    gateway = RunningGateway(settings_for([shared[1]], spaces={"secret": SECRET}, **PROXY))
    await gateway.start()
    yield gateway
    await gateway.stop()


@pytest.fixture
def proxied(shared_proxied, engine):
    """The test itself is a trusted proxy, in front of ``engine``."""
    return shared_proxied


def asked(gateway: RunningGateway) -> list[Any]:
    """What reached the engines."""
    return [request for engine in gateway.engines.values() for request in engine.requests]


def salts(request: Any) -> list[str]:
    """Every ``cache_salt`` at the top of a body, however often and however spelled."""
    found: list[str] = []

    def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found[:] = [value for name, value in members if name == "cache_salt"]
        return dict(members)

    json.loads(request.body, object_pairs_hook=pairs)
    return found


async def raw(connect, gateway: RunningGateway, *lines: bytes) -> httpx.Response:
    """A chat with header lines as they are; the answer in httpx' form, after which the connection may be over."""
    connection: Connection = await connect(gateway)
    body = b'{"model":"demo","messages":[{"role":"user","content":"Hi"}]}'
    head = [b"POST /v1/chat/completions HTTP/1.1", b"host: gateway", b"content-type: application/json", *lines]
    await connection.send(b"\r\n".join(head) + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    answer = await connection.answer()
    headers = [line.split(b": ", 1) for line in answer.head.split(b"\r\n")[1:] if line]
    return httpx.Response(answer.status, headers=[(name, value) for name, value in headers], content=answer.body)


@pytest.mark.parametrize(
    ("framing", "status", "code"),
    [
        (b"transfer-encoding: gzip, chunked", 501, "unknown_transfer_encoding"),
        (b"transfer-encoding: gzip\r\ntransfer-encoding: chunked", 501, "unknown_transfer_encoding"),
        (b"transfer-encoding: xchunked", 501, "unknown_transfer_encoding"),
        (b"host: another\r\ntransfer-encoding: chunked", 400, "malformed_http"),
    ],
)
async def test_a_head_that_the_parser_accepts_and_the_standard_does_not(guarded, connect, framing, status, code):
    connection = await connect(guarded)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n" + framing + b"\r\n\r\n0\r\n\r\n"
    await connection.send(head * 2)
    answer = await connection.answer()
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (status, code)
    assert await connection.reader.read() == b""


@pytest.mark.parametrize("line", [b"POST /v1/chat/completions", b"GET /readyz HTTP/0.9", b"POST /v1/models HTTP/2.0"])
async def test_another_version_is_refused(guarded, connect, line):
    connection = await connect(guarded)
    await connection.send((line + b"\r\nhost: a\r\n\r\n") * 2)
    answer = await connection.answer()
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (505, "unknown_http_version")
    assert await connection.reader.read() == b""


@pytest.mark.parametrize(("version", "status"), [("1.1", 400), ("1.0", 401)])
async def test_a_request_without_a_host_is_refused_unless_its_version_has_none(guarded, connect, version, status):
    connection = await connect(guarded)
    await connection.send(f"POST /v1/chat/completions HTTP/{version}\r\ncontent-length: 0\r\n\r\n".encode())
    answer = await connection.answer()
    assert answer.status == status
    assert status == 401 or "no host header" in orjson.loads(answer.body)["error"]["message"]


async def test_a_client_of_http_1_0_gets_no_interim_response(guarded, connect):
    connection = await connect(guarded)
    body = b'{"model":"demo","messages":[{"role":"user","content":"Hi"}]}'
    lines = b"content-type: application/json\r\nexpect: 100-continue\r\nauthorization: Bearer " + ACME.encode()
    await connection.send(
        b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n%b\r\n\r\n" % (len(body), lines) + body
    )
    assert (await connection.reader.read(12)) == b"HTTP/1.1 200"


# Keys


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "There is no API key"),
        ({"authorization": ""}, "There is no API key"),
        ({"authorization": "Bearer"}, "There is no API key"),
        ({"authorization": ACME}, "There is no API key"),
        ({"authorization": f"Basic {base64.b64encode(f'acme:{ACME}'.encode()).decode()}"}, "There is no API key"),
        ({"authorization": f"Bearer {ACME} {GLOBEX}"}, "There is no API key"),
        ({"authorization": f"Bearer {ACME},{GLOBEX}"}, "not valid"),
        ({"x-api-key": UNKNOWN_KEY}, "not valid"),
        ({"api-key": ACME}, "There is no API key"),
        ({"cookie": f"authorization=Bearer {ACME}"}, "There is no API key"),
        (bearer(UNKNOWN_KEY), "not valid"),
        (bearer(ACME[:-1]), "not valid"),
        (bearer(ACME + "A"), "not valid"),
        (bearer(ACME.upper()), "not valid"),
        (bearer(hash_key(ACME)), "not valid"),
        (bearer(hash_key(ACME).removeprefix("sha256:")), "not valid"),
        (bearer("A" * 50_000), "not valid"),
        (bearer("*"), "not valid"),
        (bearer("acme"), "not valid"),
        (bearer(ACME_EXPIRED), "expired"),
    ],
)
async def test_no_request_is_admitted_without_a_valid_key(guarded, headers, said):
    for answer in (
        await guarded.ask(headers=headers),
        await guarded.http.get("/v1/models", headers=headers),
        await guarded.http.get("/v1/models/demo", headers=headers),
        await guarded.send(b"not even json", **headers),
    ):
        assert said in problem(answer, 401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "demo" not in answer.text
    assert not asked(guarded)


async def test_a_key_in_the_query_is_none(guarded):
    for name in ("key", "api_key", "api-key", "access_token", "authorization"):
        answer = await guarded.http.post(f"{CHAT}?{name}={ACME}", json={"model": "demo", "messages": []})
        problem(answer, 401, "invalid_api_key")
    assert not asked(guarded)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", " Bearer ", "Bearer  "])
async def test_the_schemes_case_and_the_blanks_around_do_not_matter(guarded, connect, scheme):
    line = f"authorization: {scheme} {ACME}  ".encode()
    assert (await raw(connect, guarded, line)).status_code == 200


async def test_two_keys_are_refused_whichever_comes_first(guarded, connect):
    for keys in ((ACME, GLOBEX), (UNKNOWN_KEY, ACME), (ACME, UNKNOWN_KEY), (ACME, "")):
        lines = [f"authorization: Bearer {key}".encode() for key in keys]
        problem(await raw(connect, guarded, *lines), 400, "duplicate_header")
    assert not asked(guarded)


async def test_a_model_that_the_key_may_not_use_looks_like_none(guarded):
    refused = await guarded.ask(headers=bearer(ACME_LIMITED))
    unknown = await guarded.ask(headers=bearer(ACME_LIMITED), model="nomo")
    message = problem(refused, 404, "model_not_found", "model")
    assert message == problem(unknown, 404, "model_not_found", "model").replace("nomo", "demo")
    assert (await guarded.ask(headers=bearer(ACME_LIMITED), model="other")).status_code == 200
    cards = (await guarded.http.get("/v1/models", headers=bearer(ACME_LIMITED))).json()["data"]
    assert [card["id"] for card in cards] == ["other"]
    problem(await guarded.http.get("/v1/models/demo", headers=bearer(ACME_LIMITED)), 404, "model_not_found", "model")
    assert [request.path for request in guarded.engines["other"].requests] == [CHAT]
    assert not guarded.engines["demo"].requests


async def test_a_scope_that_the_key_may_not_use_is_refused(guarded):
    assert (await guarded.ask(headers=bearer(ACME) | {"x-cache-scope": "de"})).status_code == 200
    for key, scope in ((ACME, "fr"), (ACME, "*"), (ACME, "DE"), (GLOBEX, "de")):
        answer = await guarded.ask(headers=bearer(key) | {"x-cache-scope": scope})
        problem(answer, 403 if scope != "*" else 400)
    assert len(asked(guarded)) == 1


# The tenant's header


async def test_only_a_trusted_proxy_names_the_tenant(guarded, gateway):
    for open_or_not, own in ((guarded, bearer(ACME)), (guarded, {}), (gateway, {})):
        for more in ({}, {"x-forwarded-for": "127.0.0.1"}, {"x-real-ip": "127.0.0.1"}, {"forwarded": "for=127.0.0.1"}):
            headers = {"x-tenant-id": "globex"} | own | more
            problem(await open_or_not.ask(headers=headers), 403, "tenant_header_not_trusted")
    assert not asked(guarded)


async def test_a_trusted_proxy_names_one_tenant_that_exists(proxied, connect):
    for name, status, code in (
        (b"acme", 200, None),
        (b" acme\t", 200, None),
        (b"initech", 403, "unknown_tenant"),
        (b"ACME", 403, "unknown_tenant"),
        (b"", 400, "invalid_tenant"),
        (b"*", 400, "invalid_tenant"),
        (b"acme, globex", 400, "invalid_tenant"),
        (b"acme;globex", 400, "invalid_tenant"),
        (b"../acme", 400, "invalid_tenant"),
        (b"a" * 65, 400, "invalid_tenant"),
        (b"caf\xc3\xa9", 400, "invalid_tenant"),
        (b"\xff", 400, "invalid_tenant"),
    ):
        answer = await raw(connect, proxied, b"x-tenant-id: " + name)
        assert answer.status_code == status, name
        if code:
            problem(answer, status, code)
    problem(await raw(connect, proxied), 401, "invalid_api_key")
    problem(await raw(connect, proxied, b"x_tenant_id: acme"), 401, "invalid_api_key")


@pytest.mark.parametrize(("first", "second"), [(b"acme", b"globex"), (b"globex", b"acme"), (b"", b"acme")])
async def test_a_tenant_given_twice_through_a_proxy_is_refused(proxied, connect, engine, first, second):
    answer = await raw(connect, proxied, b"x-tenant-id: " + first, b"X-Tenant-Id: " + second)
    problem(answer, 400, "duplicate_header")
    assert not engine.requests


async def test_a_tenant_header_behind_the_body_is_ignored(proxied, connect, engine):
    connection = await connect(proxied)
    body = b'{"model":"demo","messages":[{"role":"user","content":"Hi"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    chunked = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
    await connection.send(head + chunked + b"x-tenant-id: acme\r\n\r\n")
    assert (await connection.answer()).status == 401
    await connection.send(head + b"x-tenant-id: acme\r\n" + chunked + b"x-tenant-id: globex\r\nx-evil: 1\r\n\r\n")
    assert (await connection.answer()).status == 200
    (request,) = engine.requests
    assert b"x-evil" not in dict(request.headers)
    (space,) = (await proxied.admin.get("/admin/api/spaces")).json()["spaces"]
    assert space["tenant"] == "tenant:acme"


# Raw HTTP


@pytest.mark.parametrize("name", [b"authorization", b"x-tenant-id", b"x-cache-scope", b"x-request-id", b"x-session-id"])
async def test_line_breaks_and_control_characters_in_headers_are_no_http(guarded, connect, name):
    key = b"authorization: Bearer " + ACME.encode()
    for value in (
        b"a\nx-tenant-id: globex",
        b"a\rx-tenant-id: globex",
        b"a\r\n x-tenant-id: globex",
        b"a\r\n\tfolded",
        b"a\0b",
        b"a\x0bb",
        b"a\x7fb",
    ):
        lines = [name + b": " + value] if name == b"authorization" else [key, name + b": " + value]
        problem(await raw(connect, guarded, *lines), 400, "malformed_http")
    assert not asked(guarded)


@pytest.mark.parametrize("value", [b"caf\xc3\xa9", b"\xff\xfe", b"\xe2\x80\xa8", b"\xc4\x8d\xc4\x8ahost: b"])
async def test_headers_that_are_not_ascii_do_no_harm(guarded, connect, value):
    key = b"authorization: Bearer " + ACME.encode()
    problem(await raw(connect, guarded, b"authorization: Bearer " + value), 401, "invalid_api_key")
    problem(await raw(connect, guarded, key + value), 401, "invalid_api_key")
    problem(await raw(connect, guarded, key, b"x-cache-scope: " + value), 400, "invalid_scope")
    problem(await raw(connect, guarded, key, b"x-tenant-id: " + value), 403, "tenant_header_not_trusted")
    answer = await raw(connect, guarded, key, b"x-request-id: " + value)
    assert answer.status_code == 200
    assert answer.headers["x-request-id"].isascii()
    (request,) = asked(guarded)
    assert dict(request.headers)[b"x-request-id"].decode() == answer.headers["x-request-id"]


async def test_percent_signs_stay_percent_signs(guarded, connect):
    key = b"authorization: Bearer " + ACME.encode()
    answer = await raw(connect, guarded, key, b"x-request-id: a%0d%0ax-evil:%201")
    assert answer.headers["x-request-id"] == "a%0d%0ax-evil:%201"
    assert "x-evil" not in answer.headers


@pytest.mark.parametrize(
    "lines",
    [
        (b"x-huge: " + b"a" * 2**20,),
        (b"authorization: Bearer " + b"a" * 2**20,),
        (b"x-tenant-id: " + b"a" * 2**20,),
        tuple(b"x-%d: v" % number for number in range(10_000)),
        tuple(b"cookie: a=b" for _ in range(10_000)),
    ],
)
async def test_huge_headers_are_refused_before_they_are_kept(guarded, connect, lines):
    message = problem(await raw(connect, guarded, *lines), 431, "headers_too_large")
    assert "server.max_header_bytes" in message
    assert not asked(guarded)
    assert (await guarded.ask(headers=bearer(ACME))).status_code == 200


async def test_two_hundred_headers_are_accepted_and_one_more_is_not(guarded, connect):
    lines = [b"authorization: Bearer " + ACME.encode(), *[b"a:b"] * 196]  # beside host, content-type, content-length
    assert (await raw(connect, guarded, *lines)).status_code == 200
    problem(await raw(connect, guarded, *lines, b"a:b"), 431, "headers_too_large")
    problem(await raw(connect, guarded, *[b"a:b"] * 10_000), 431, "headers_too_large")


SMUGGLED = post(CHAT, b'{"model":"demo","messages":[{"role":"user","content":"smuggled"}]}', f"authorization: {ACME}")


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 0\r\ncontent-length: %d\r\n\r\n" % len(SMUGGLED),
        b"content-length: %d\r\ncontent-length: 0\r\n\r\n" % len(SMUGGLED),
        b"content-length: 0, %d\r\n\r\n" % len(SMUGGLED),
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        b"content-length: +5\r\n\r\n12345",
        b"content-length: 0x5\r\n\r\n12345",
    ],
)
async def test_a_body_of_two_lengths_smuggles_no_request(guarded, connect, framing):
    connection = await connect(guarded)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    await connection.send(head + b"authorization: Bearer " + ACME.encode() + b"\r\n" + framing + SMUGGLED)
    answer = await connection.answer()
    assert (answer.status, orjson.loads(answer.body)["error"]["code"]) == (400, "malformed_http")
    assert await connection.reader.read() == b""
    assert not asked(guarded)


# Salts


@pytest.mark.parametrize(
    "salt", ["", "a" * 129, "a@b", "a/b", "a\\b", "a\0b", "../..", 7, 1.5, True, ["a"], {"a": 1}, [], {}]
)
async def test_a_salt_that_no_engine_takes_is_refused(guarded, salt):
    answer = await guarded.ask(headers=bearer(ACME), cache_salt=salt)
    problem(answer, 400, "invalid_cache_salt", "cache_salt")
    answer = await guarded.http.post(
        COMPLETIONS, json={"model": "demo", "prompt": "Hi", "cache_salt": salt}, headers=bearer(ACME)
    )
    problem(answer, 400, "invalid_cache_salt", "cache_salt")
    assert not asked(guarded)


MEMBERS = b'"model":"demo","messages":[{"role":"user","content":"Hi"}]'


@pytest.mark.parametrize(
    "body",
    [
        b'{"cache_salt":"client-1",' + MEMBERS + b"}",
        b"{" + MEMBERS + b',"cache_salt":"client-1"}',
        b'{"cache_salt":"client-1",' + MEMBERS + b',"cache_salt":"client-2"}',
        b'{"cache_salt":"a/b","cache_salt":7,' + MEMBERS + b',"cache_salt":"client-2"}',
        b'{"cache_salt":["client-1",{"a":"}"}],' + MEMBERS + b',"cache_salt":"client-2"}',
        b'{"cache\\u005fsalt":"client-1",' + MEMBERS + b"}",
        b'{"\\u0063\\u0061che_sal\\u0074":"client-1",' + MEMBERS + b',"cache_salt":"client-2"}',
        b'{"cache_salt":"client-1",' + MEMBERS + b',"cache\\u005Fsalt" : "client-2"}',
        b'{"cache_salt":"\\u0063lient-1",' + MEMBERS + b"}",
        b'{"cache_salt":null,' + MEMBERS + b"}",
        b'{"cache_salt":"client-1",' + MEMBERS + b',"cache_salt":null}',
    ],
)
async def test_the_engine_never_sees_a_clients_own_salt(guarded, body):
    answer = await guarded.send(body, **bearer(ACME))
    assert answer.status_code == 200, answer.text
    (request,) = asked(guarded)
    assert b"client-" not in request.body
    (salt,) = set(salts(request))
    assert len(salt) == 32
    assert set(orjson.loads(request.body)) == {"model", "messages", "cache_salt"}


async def test_what_only_looks_like_the_salt_stays_as_it_is(guarded):
    metadata = {"cache_salt": "client-1", "x": [{"cache_salt": "client-2"}]}
    await guarded.ask('"cache_salt":"client-3"', headers=bearer(ACME), metadata=metadata, Cache_Salt="client-4")
    (request,) = asked(guarded)
    body = orjson.loads(request.body)
    assert body["metadata"] == metadata
    assert body["messages"][0]["content"] == '"cache_salt":"client-3"'
    assert body["Cache_Salt"] == "client-4"
    assert len(salts(request)) == 1


async def test_no_two_spaces_have_a_salt_in_common_and_no_key_travels(guarded):
    spaces: dict[tuple[str, str, str | None], set[str]] = defaultdict(set)
    for key, scope in ((ACME, ""), (ACME, "de"), (GLOBEX, "")):
        for own in (None, "x", "y", "x" * 128):
            for _ in range(2):
                headers = bearer(key) | ({"x-cache-scope": scope} if scope else {})
                fields = {} if own is None else {"cache_salt": own}
                assert (await guarded.ask(LONG, headers=headers, **fields)).status_code == 200
                spaces[key, scope, own].update(salts(guarded.engines["demo"].requests[-1]))
    assert all(len(found) == 1 for found in spaces.values())
    assert len(set.union(*spaces.values())) == len(spaces)
    for request in asked(guarded):
        sent = repr(request.headers).encode() + request.body
        assert not any(secret.encode() in sent for secret in (ACME, GLOBEX, SECRET))
        assert b"authorization" not in dict(request.headers)
        assert not {b"acme", b"globex", b"acme-ci"} & set(sent.split(b'"'))


async def test_the_salt_of_another_tenant_grants_nothing(guarded):
    """Even who learned the salt that the engine got for another tenant does not get at its blocks."""
    own = f"Of this test. {LONG}"
    await guarded.ask(own, headers=bearer(ACME))
    (salt,) = salts(asked(guarded)[-1])
    assert (await guarded.ask(own, headers=bearer(ACME))).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    for own in (None, salt):
        fields = {} if own is None else {"cache_salt": own}
        answer = await guarded.ask(own, headers=bearer(GLOBEX), **fields)
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert answer.headers["x-gateway-prefix-tokens"] == "0"
        assert salts(asked(guarded)[-1]) != [salt]
