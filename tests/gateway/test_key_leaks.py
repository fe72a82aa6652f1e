"""Keys and secrets appear nowhere: the real command, asked with every key in every wrong place, and all it said."""

import asyncio
import base64
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from patience import HANG_SECONDS
from raw_http import Connection
from running_gateway import CHAT, eventually

from gateway.core.api_keys import hash_key, new_key, redacted

KEYS = {name: new_key() for name in ("acme", "limited", "expired", "globex", "stranger")}
ADMIN = {name: new_key("pgw_admin") for name in ("operator", "reader", "expired", "stranger")}
SECRETS = {
    "space secret": "the secret that salts are made with",
    "replica's key": "sk-the-engine-wants-this-one",
    "admin token": "plain-admin-token-of-the-old-kind",
}
ALL = {**KEYS, **{f"admin {name}": token for name, token in ADMIN.items()}, **SECRETS}


def configuration(url: str, audit: Path, proxies: Sequence[str]) -> dict[str, Any]:
    return {
        "server": {
            "port": 0,
            "admin_port": 0,
            "drain_seconds": 0,
            "admin_token": SECRETS["admin token"],
            "admin_tokens": [
                {"id": "operator", "hash": hash_key(ADMIN["operator"]), "role": "operate"},
                {"id": "reader", "hash": hash_key(ADMIN["reader"]), "role": "read"},
                {"id": "gone", "hash": hash_key(ADMIN["expired"]), "role": "read", "expires": "2020-01-01"},
            ],
        },
        "log": {"format": "json", "level": "debug"},
        "models": [
            {
                "id": "demo",
                "tokenizer": "builtin:demo",
                "replicas": [{"url": url, "id": "r0", "api_key": SECRETS["replica's key"]}],
            }
        ],
        "tenants": [
            {
                "id": "acme",
                "requests_per_second": 1000,
                "keys": [
                    {"hash": hash_key(KEYS["acme"]), "id": "ci", "scopes": ["*"]},
                    {"hash": hash_key(KEYS["limited"]), "models": ["demo"]},
                    {"hash": hash_key(KEYS["expired"]), "expires": "2020-01-01"},
                ],
            },
            {"id": "globex", "keys": [hash_key(KEYS["globex"])]},
            *([{"id": "*"}] if proxies else []),
        ],
        "admission": {"trusted_proxies": list(proxies)},
        "spaces": {"secret": SECRETS["space secret"], "file": str(audit.with_name("spaces.json"))},
        "audit": {"file": str(audit)},
    }


async def wrong_places(http: httpx.AsyncClient, port: int, key: str) -> None:
    """A key where it may stand, and wherever it may be put by mistake."""
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    for headers in (
        {"authorization": f"Bearer {key}"},
        {"authorization": f"bearer {key}"},
        {"authorization": key},
        {"authorization": f"Basic {basic}"},
        {"authorization": f"Bearer {key} {key}"},
        {"authorization": f"Bearer {key}", "x-tenant-id": key},
        {"authorization": f"Bearer {key}", "x-cache-scope": key},
        {"authorization": f"Bearer {key}", "x-session-id": key},
        {"x-api-key": key, "user-agent": key, "cookie": key, "x-client": key},
    ):
        await http.post(CHAT, json=body, headers=headers)
    bearer = {"authorization": f"Bearer {key}"}
    if key.startswith("pgw_"):  # other secrets cannot be distinguished from an id or a name
        for request_id in (key, f"trace-{key}-1"):
            await http.post(CHAT, json=body, headers=bearer | {"x-request-id": request_id})
            await http.get("/v1/models", headers=bearer | {"x-request-id": request_id})
        # Any scope may be asked for with this key, and the name of any tenant that a trusted proxy gives is good.
        for headers in (
            {"authorization": f"Bearer {KEYS['acme']}", "x-cache-scope": key},
            {"x-tenant-id": key},
            {"x-tenant-id": "acme", "x-cache-scope": key},
        ):
            assert (await http.post(CHAT, json=body, headers=headers)).status_code in {400, 403}
    await http.post(f"{CHAT}?key={key}", json=body, headers=bearer)
    await http.post(CHAT, content=f'{{"model": "{key}'.encode(), headers=bearer | {"content-type": "application/json"})
    await http.post(CHAT, json=body | {"cache_salt": f"{key}/"}, headers=bearer)
    await http.post(CHAT, json=body | {"cache_salt": key, "user": key}, headers=bearer)
    await http.get("/v1/models", headers=bearer)
    connection = await Connection.open(port)
    try:
        await connection.send(b"GET / HTTP/1.1\r\nauthorization: Bearer %b\nx: y\r\n\r\n" % key.encode())
        await connection.answer()
    finally:
        connection.abort()


async def look_around(admin: httpx.AsyncClient, key: str) -> None:
    """The admin port, with a key or a token."""
    bearer = {"authorization": f"Bearer {key}"}
    for path in ("/metrics", "/admin/api/config", "/admin/api/spaces", "/admin/api/replicas", "/admin/api/nothing"):
        await admin.get(path, headers=bearer)
        await admin.get(f"{path}?token={key}")
    operator = {"authorization": f"Bearer {ADMIN['operator']}"}
    for headers in (bearer, operator) if key.startswith("pgw_") else ():
        for path in (key, f"warm/{key}", f"spaces?{key}=1", f"spaces?tenant={key}&scope={key}"):
            await admin.get(f"/admin/api/{path}", headers=headers)
        for name in ("scope", "template_version", "model", "tenant", key):
            answer = await admin.post("/admin/api/spaces/reset", json={name: key}, headers=headers)
            if headers is operator:
                reported = (answer.status_code, answer.json()["error"]["param"])
                assert reported == (400, name if name != key else redacted(key))
    await admin.post("/admin/api/spaces/reset", json={"tenant": "acme"}, headers=bearer)
    await admin.post("/admin/api/spaces/reset", json={"tenant": key}, headers={"authorization": key})
    await admin.post(
        "/admin/api/warm", json={"prefixes": [{"model": "demo", "tenant": "acme", "prompt": "Hi"}]}, headers=bearer
    )


@pytest.mark.parametrize(
    "proxies", [(), pytest.param(("127.0.0.1",), marks=pytest.mark.slow)], ids=["direct", "behind a trusted proxy"]
)
async def test_no_key_is_in_any_log_error_metric_or_page(start_engine, tmp_path, proxies):
    engine = await start_engine(record_requests=1000)
    audit, out, err = tmp_path / "audit.jsonl", tmp_path / "out", tmp_path / "err"
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(configuration(engine.url, audit, proxies)))
    answers: list[str] = []

    async def keep(response: httpx.Response) -> None:
        answers.append(f"{response.status_code} {response.headers.multi_items()!r} {(await response.aread()).decode()}")

    with out.open("wb") as stdout, err.open("wb") as stderr:
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
        process = await asyncio.create_subprocess_exec(*command, stdout=stdout, stderr=stderr)
    try:
        await eventually(lambda: "gateway_ready" in err.read_text() or process.returncode is not None)
        (ready,) = [line for line in map(json.loads, err.read_text().splitlines()) if line["event"] == "gateway_ready"]
        hooks: Any = {"response": [keep]}
        async with (
            httpx.AsyncClient(base_url=ready["public"], event_hooks=hooks) as http,
            httpx.AsyncClient(base_url=ready["admin"], event_hooks=hooks) as admin,
        ):
            # A proxy's word for a tenant is believed: only a key of the gateway's own can be distinguished from a name.
            for secret in (*KEYS.values(), *ADMIN.values()) if proxies else ALL.values():
                await wrong_places(http, httpx.URL(ready["public"]).port or 0, secret.replace(" ", "-"))
                await look_around(admin, secret.replace(" ", "-"))
            for path in ("/metrics", "/admin/api/config", "/admin/api/spaces", "/admin/api/replicas"):
                shown = await admin.get(path, headers={"authorization": f"Bearer {ADMIN['reader']}"})
                assert shown.status_code == 200
                assert len(shown.text) > 100
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), HANG_SECONDS) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    said = {name: (tmp_path / name).read_text() for name in os.listdir(tmp_path) if name != file.name}
    assert said.keys() == {"audit.jsonl", "audit.jsonl.operators", "out", "err", "spaces.json", "spaces.json.lock"}
    assert len(said["audit.jsonl"].splitlines()) > 50
    said["answers"] = "\n".join(answers)
    # What was refused has been refused, and what was let in has been let in: else this would show nothing.
    statuses = {answer[:3] for answer in answers}
    assert {"200", "202", "400", "401", "403", "404"} <= statuses
    for name, secret in ALL.items():
        for spelled in {secret.replace(" ", "-"), secret, re.sub("^pgw_(admin_)?", "", secret)}:
            places = [place for place, text in said.items() if spelled in text]
            assert not places, f"the {name} key stands in {places}"
    sent = [repr(request.headers) + request.body.decode() for request in engine.requests]
    assert sent
    for key in (*KEYS.values(), *ADMIN.values()):
        # Everything in a client's own headers is passed on; the gateway's own header is no place for a key.
        ids = [
            value.decode() for request in engine.requests for name, value in request.headers if name == b"x-request-id"
        ]
        # The gateway's own probes at its start belong to no request.
        assert len(ids) == sum(not request.path.endswith("/render") for request in engine.requests)
        assert not any(key in request_id for request_id in ids)
        assert not any(re.search(rf"authorization'?.{{0,20}}{re.escape(key)}", request) for request in sent)
        assert not any(f'"cache_salt": "{key}"' in request or f'"cache_salt":"{key}"' in request for request in sent)
