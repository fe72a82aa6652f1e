"""Mistakes outside of the engines: ports, Redis, lifetimes, discovery, prefixes that do not fill a block."""

import asyncio
import contextlib
import json
import socket

import pytest
from examined_settings import examined, names, only, settings_for
from redis_server import RedisServer

from gateway.core.request import Endpoint
from gateway.evaluation.doctor.doctor_finding import Severity
from gateway.evaluation.doctor.lifetime_checks import lifetime_findings
from gateway.evaluation.doctor.prefix_checks import SharedPrefix
from gateway.evaluation.doctor.surroundings import port_findings, redis_findings
from gateway.http_client import HttpClient

SECRET = "what all gateways have in common"
ISOLATED = {"isolation": "tenant", "secret": SECRET}


# Ports.


@pytest.fixture
async def answering(closing):
    """Starts a server that answers every request with a document, and gives its port."""

    async def start(document: bytes, host: str = "127.0.0.1") -> int:
        async def answer(reader, writer):
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(document), document))
                await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, host, 0)
        closing.callback(server.close)
        return server.sockets[0].getsockname()[1]

    return start


async def ports(settings, address=""):
    client = HttpClient(5.0)
    try:
        return list(await port_findings(settings, client, 5.0, lambda: address))
    finally:
        client.close()


@pytest.mark.parametrize("name", ["port", "admin_port"])
async def test_a_port_that_something_else_uses(answering, name):
    taken = await answering(b"hello")
    (found,) = await ports(settings_for("http://h", server={name: taken}))
    assert (found.name, found.where) == ("port-in-use", f"server.{name}")
    assert f"server.{name}" in found.fix
    assert str(taken) in found.fix


async def test_ports_of_a_gateway_that_serves_are_in_order(answering):
    public = await answering(b'{"status":"ready"}')
    admin = await answering(b'{"status":"ok"}')
    assert await ports(settings_for("http://h", server={"port": public, "admin_port": admin})) == []


async def test_a_port_that_accepts_and_does_not_answer():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        client = HttpClient(0.2)
        settings = settings_for("http://h", server={"port": silent.getsockname()[1]})
        found = await port_findings(settings, client, 0.2, lambda: "")
        client.close()
    assert [each.name for each in found] == ["port-in-use"]


async def test_an_admin_port_without_a_token_beside_an_open_public_port():
    (found,) = await ports(settings_for("http://h", server={"host": "0.0.0.0"}, admission={"open": True}))
    assert (found.name, found.severity, found.where) == ("admin-open", Severity.WARNING, "server.admin_token")
    token = settings_for(
        "http://h", server={"host": "0.0.0.0", "admin_token": "a-token-that-is-long"}, admission={"open": True}
    )
    assert await ports(token) == []


async def test_an_admin_port_that_other_machines_can_use_without_a_token(answering, monkeypatch):
    # 127.0.0.2 is another address of this machine; here it plays the one that others reach.
    monkeypatch.setattr("gateway.evaluation.doctor.surroundings.is_loopback", lambda host: host == "127.0.0.1")
    open_port = await answering(b'{"status":"ok","replicas":[]}', "0.0.0.0")
    found = await ports(settings_for("http://h", server={"admin_port": open_port}), "127.0.0.2")
    assert [(each.name, each.severity) for each in found] == [("admin-open", Severity.ERROR)]
    assert f"127.0.0.2:{open_port}" in found[0].said


# Redis.


async def test_a_redis_that_cannot_be_reached(start_engine):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{closed.getsockname()[1]}"
        engine = await start_engine()
        found = only(await examined(settings_for(engine, state=url, spaces={"secret": SECRET})))
    assert (found.name, found.where) == ("redis-unreachable", "state")
    assert SECRET not in found.said


async def test_a_redis_that_refuses_writes_when_it_is_full(start_engine, tmp_path):
    engine = await start_engine()
    server = RedisServer(tmp_path, "--maxmemory", "64mb", "--maxmemory-policy", "noeviction")
    server.start()
    try:
        found = only(await examined(settings_for(engine, state=server.url, spaces={"secret": SECRET})))
        assert found.name == "redis-eviction"
        assert "64 MiB" in found.said
        with server.client() as client:
            client.config_set("maxmemory-policy", "volatile-ttl")
        assert names(await examined(settings_for(engine, state=server.url, spaces={"secret": SECRET}))) == []
    finally:
        server.kill()


def test_a_redis_that_is_too_old():
    (found,) = redis_findings({"redis_version": "5.0.14", "maxmemory_policy": "noeviction", "maxmemory": 0})
    assert found.name == "redis-version"
    assert "6.2" in found.fix
    assert list(redis_findings({"redis_version": "7.0.15", "maxmemory": 0})) == []
    assert list(redis_findings({})) == []


# Lifetimes.


def tenants(*changes):
    key = {"hash": "sha256:" + "0" * 64}
    return [
        {"id": f"t{number}", "keys": [{**key, "hash": f"sha256:{number:064x}"}], **change}
        for number, change in enumerate(changes, 1)
    ]


@pytest.mark.parametrize(
    ("sections", "where", "said"),
    [
        (
            {"spaces": {"idle_ttl_seconds": 60, "max_age_seconds": 50}},
            "spaces.idle_ttl_seconds",
            "not below max_age_seconds (50)",
        ),
        (
            {"spaces": {**ISOLATED, "idle_ttl_seconds": 7200, "max_age_seconds": 3600}},
            "spaces.idle_ttl_seconds",
            "not below max_age_seconds (3600)",
        ),
        (
            {"spaces": ISOLATED, "tenants": tenants({"idle_ttl_seconds": 100_000})},
            "tenants[0].idle_ttl_seconds",
            "not below max_age_seconds (86400)",
        ),
        (
            {
                "spaces": {**ISOLATED, "isolation": "group"},
                "tenants": tenants({"group": "g"}, {"group": "g", "idle_ttl_seconds": 60}),
            },
            "tenants[1]",
            "share the spaces of group g",
        ),
    ],
)
def test_lifetimes_without_effect(sections, where, said):
    (found,) = lifetime_findings(settings_for("http://h", **sections))
    assert (found.name, found.where) == ("ttl-without-effect", where)
    assert said in found.said


def test_lifetimes_that_have_an_effect():
    right = {
        "spaces": {**ISOLATED, "idle_ttl_seconds": 60},
        "tenants": tenants({"max_age_seconds": 600, "idle_ttl_seconds": 30}),
    }
    assert list(lifetime_findings(settings_for("http://h", **right))) == []
    for shared in ({"idle_ttl_seconds": 100_000}, {"max_age_seconds": 60}):
        assert list(lifetime_findings(settings_for("http://h", spaces=shared))) == []
    assert list(lifetime_findings(settings_for("http://h"))) == []


# Discovery.


async def test_a_discovery_that_finds_nothing(tmp_path):
    file = tmp_path / "replicas.yaml"
    file.write_text("[]")
    settings = settings_for(model={"replicas": [], "discover": {"file": {"path": str(file)}}})
    found = only(await examined(settings))
    assert (found.name, found.where) == ("discovery-fails", "models[0].discover")
    assert "lists no replica" in found.said


async def test_discovered_replicas_are_examined(start_engine, tmp_path):
    engine = await start_engine(prefix_caching=False)
    file = tmp_path / "replicas.yaml"
    file.write_text(json.dumps([{"url": engine.url, "id": "found"}]))
    settings = settings_for(model={"replicas": [], "discover": {"file": {"path": str(file)}}})
    found = only(await examined(settings))
    assert (found.name, found.where) == ("prefix-caching-off", "replica found")


# Prefixes and blocks.


def declared(tmp_path, text):
    file = tmp_path / "prefixes.json"
    file.write_text(json.dumps([{"model": "demo", "messages": [{"role": "system", "content": text}]}]))
    return {"warm": {"file": str(file)}}


@pytest.mark.parametrize("tokenizer", ["builtin:demo", "engine"])
async def test_a_declared_prefix_that_is_shorter_than_a_block(start_engine, tmp_path, tokenizer):
    engine = await start_engine(block_size=256)
    model = {"tokenizer": tokenizer}
    found = only(await examined(settings_for(engine, model=model, **declared(tmp_path, "Be kind."))))
    assert found.name == "block-larger-than-prefix"
    assert "prefixes.json[0]" in found.where
    assert "has 256" in found.said
    assert "--block-size" in found.fix
    assert names(await examined(settings_for(engine, model=model, **declared(tmp_path, "Be kind. " * 200)))) == []


async def test_declared_prefixes_that_cannot_be_read(start_engine, tmp_path):
    engine = await start_engine()
    sections = declared(tmp_path, "Be kind.")
    (tmp_path / "prefixes.json").write_text("[{]")
    found = only(await examined(settings_for(engine, **sections)))
    assert (found.name, found.where) == ("prefixes-unreadable", "warm.file")
    assert "prefixes.json:1" in found.said


async def test_requests_that_share_less_than_a_block(start_engine):
    engine = await start_engine()
    long = "You are the assistant of a shop. " * 20
    prompts = [
        (Endpoint.CHAT, {"messages": [{"role": "system", "content": f"It is {day}. {long}"}]})
        for day in ("May", "June")
    ]
    diagnosis = await examined(settings_for(engine), requests=[SharedPrefix("support.jsonl", "demo", prompts)])
    found = only(diagnosis)
    assert (found.name, found.where) == ("block-larger-than-prefix", "support.jsonl")
    single = SharedPrefix("support.json", "demo", prompts[:1])
    assert names(await examined(settings_for(engine), requests=[single])) == []


async def test_a_prefix_of_a_model_without_an_engine_is_named_as_not_checked():
    unknown = SharedPrefix("support.json", "demo", [(Endpoint.COMPLETIONS, {"prompt": "x"})])
    diagnosis = await examined(settings_for("http://127.0.0.1:9"), requests=[unknown], timeout_seconds=1.0)
    assert names(diagnosis) == ["replica-unreachable"]
    assert diagnosis.unchecked == ["support.json: no replica of demo says how large its blocks are"]
