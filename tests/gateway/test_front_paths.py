"""Paths beside the generation endpoints: health as engines have it, HEAD, and paths that are not served."""

import re

import pytest
from api_errors import problem
from running_gateway import CHAT, eventually
from structlog.testing import capture_logs
from tenancy import SECRET, tenant

from gateway import __version__
from gateway.config.server_settings import ServerSettings

PUBLIC_GETS = ["/health", "/ping", "/version", "/healthz", "/readyz", "/v1/models", "/v1/models/demo"]
ADMIN_GETS = [
    "/",
    "/healthz",
    "/dashboard",
    "/dashboard/requests",
    "/metrics",
    "/admin/api/me",
    "/admin/api/replicas",
    "/admin/api/prefixes",
    "/admin/api/spaces",
    "/admin/api/warm",
    "/admin/api/config",
]


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_engine_health_paths_follow_the_replicas(start_engine, start_gateway, path):
    engines = {name: await start_engine(model=name, fault="refuse") for name in ("a", "b")}
    models = [{"id": name, "tokenizer": "builtin:demo", "replicas": [engine.url]} for name, engine in engines.items()]
    gateway = await start_gateway(models=models, relay={"health_interval_seconds": 0.03})
    refused = await gateway.http.get(path)
    problem(refused, 503, "no_replica")
    assert refused.headers["retry-after"]
    await engines["a"].set_fault("")

    async def healthy() -> bool:
        return (await gateway.http.get(path)).status_code == 200

    await eventually(healthy)
    answer = await gateway.http.get(path)
    assert (answer.content, answer.headers["content-length"]) == (b"", "0")
    # One model of two: a platform must not take the gateway away from both.
    ready = await gateway.http.get("/readyz")
    assert (ready.status_code, ready.json()["models"]) == (200, {"a": True, "b": False})


async def test_health_ends_when_the_gateway_is_about_to_leave(gateway):
    assert (await gateway.http.get("/health")).status_code == 200
    gateway.gateway.leave()
    problem(await gateway.http.get("/health"), 503, "no_replica")


async def test_ping_takes_post_as_engines_do(gateway):
    assert (await gateway.http.post("/ping")).status_code == 200
    reported = await gateway.http.delete("/ping")
    problem(reported, 405, "method_not_allowed")
    assert reported.headers["allow"] == "GET, HEAD, POST"


async def test_version_in_the_engines_shape(gateway):
    assert (await gateway.http.get("/version")).json() == {"version": __version__}


async def test_health_and_version_need_no_key(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), tenants=[tenant("acme")], spaces={"secret": SECRET})
    assert (await gateway.http.get("/v1/models")).status_code == 401
    for path in ("/health", "/ping", "/version"):
        assert (await gateway.http.get(path)).status_code == 200


async def heads_like_gets(client, paths: list[str]) -> None:
    for path in paths:
        get, head = await client.get(path), await client.head(path)
        assert (path, get.status_code, head.status_code, head.content) == (path, 200, 200, b"")
        # The page of metrics grows with every look at it.
        changing = {"date", "content-length"} if path == "/metrics" else {"date"}
        assert "content-length" in head.headers, path
        assert without(head.headers, changing) == without(get.headers, changing), path


def without(headers, names: set[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in names}


async def test_head_on_every_get_route(gateway):
    assert (await gateway.ask()).status_code == 200
    await heads_like_gets(gateway.http, PUBLIC_GETS)
    await heads_like_gets(gateway.admin, ADMIN_GETS)


async def test_the_lists_of_paths_above_are_whole(gateway):
    public = {route.path for route in gateway.gateway.public.routes.routes if "GET" in route.methods}
    admin = {route.path for route in (await gateway.gateway.admin.build()).routes if "GET" in route.methods}
    explained = {
        path for path in admin if re.match(r"/admin/api/(summary|reasons|requests|live|experiment|report)", path)
    }
    elsewhere = {"/v1/responses", "/v1/responses/{id}", "/v1/responses/{id}/input_items"}  # test_responses_api.py
    elsewhere.add("/v1/gateway/explanations/{id:path}")  # test_diagnostics.py
    assert public == {path.replace("/demo", "/{model:path}") for path in PUBLIC_GETS} | elsewhere
    assert admin - explained == {
        *(set(ADMIN_GETS) - {"/dashboard/requests"}),
        "/dashboard/{path:path}",
        "/dashboard/assets/{address:path}",
        "/admin/api/sessions",
        "/admin/api/sessions/{id:path}",
        "/admin/api/warm/{job}",
    }


async def test_head_of_the_live_stream_ends_at_once(gateway):
    answer = await gateway.admin.head("/admin/api/live")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_head_of_an_error_has_its_status_and_no_body(gateway, connect):
    for path, status in (("/v1/models/none", 404), ("/nothing", 404), (CHAT, 405)):
        client = await connect(gateway)
        await client.send(f"HEAD {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n".encode())
        raw = await client.reader.read()
        head, _, body = raw.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert body == b""


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/messages/batches"),
        ("POST", "/v1/classify"),
        ("POST", "/pooling"),
    ],
)
async def test_apis_that_are_not_served_say_which_are(gateway, method, path):
    answer = await gateway.http.request(method, path, json={"model": "demo"})
    reported = problem(answer, 404, "unknown_path")
    assert f"{method} {path} is not served here" in reported
    posted = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses")
    for served in (*(f"POST {path}" for path in posted), "GET /v1/models"):
        assert served in reported


async def test_refused_paths_are_logged_once_and_counted(gateway):
    with capture_logs() as logs:
        await gateway.http.get("/wp-login.php?key=secret", headers={"x-request-id": "mine"})
        await gateway.http.put(CHAT)
    reported = [
        {k: v for k, v in line.items() if k != "log_level"} for line in logs if line["event"] == "request_refused"
    ]
    common = {"event": "request_refused", "tenant": None, "key_id": None, "endpoint": "other"}
    assert reported[0] == common | {
        "request_id": "mine",
        "status": 404,
        "code": "unknown_path",
        "method": "GET",
        "path": "/wp-login.php",
        "dialect": "",
    }
    assert (reported[1]["status"], reported[1]["code"], reported[1]["method"], reported[1]["path"]) == (
        405,
        "method_not_allowed",
        "PUT",
        CHAT,
    )
    assert len(reported) == 2
    metrics = await gateway.metrics()
    labels = {"endpoint": "other", "model": "unknown", "tenant": "unknown"}
    assert metrics.value("gateway_requests_total", **labels, status="404") == 1
    assert metrics.value("gateway_requests_total", **labels, status="405") == 1


async def test_log_of_a_refused_path_is_short_and_harmless(gateway, connect):
    key = "pgw_" + "a" * 43
    paths = ["/" + "x" * 5000, "/a%0d%0ainjected%1b[31mred%e2%80%ae", f"/v1/{key}/x"]
    with capture_logs() as logs:
        for path in paths:
            client = await connect(gateway)
            await client.send(f"GET {path} HTTP/1.1\r\nhost: g\r\n\r\n".encode())
            assert (await client.answer()).status == 404
    reported = [line["path"] for line in logs if line["event"] == "request_refused"]
    assert len(reported) == len(paths)
    assert all(len(path) <= 201 and re.fullmatch(r"[!-~]+…?", path) for path in reported)
    assert reported[1].startswith("/a??injected?[31mred")
    assert key not in reported[2]


async def test_refused_paths_make_one_series_each_status_however_many_there_are(gateway):
    for number in range(30):
        await gateway.http.request("GET" if number % 2 else "POST", f"/{number}")
    metrics = await gateway.metrics()
    series = [
        sample.labels
        for family in metrics.families
        for sample in family.samples
        if sample.name == "gateway_requests_total"
    ]
    assert series == [{"model": "unknown", "tenant": "unknown", "endpoint": "other", "status": "404"}]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("DELETE", "/metrics", 405)])
async def test_admin_port_logs_refused_paths(gateway, method, path, status):
    with capture_logs() as logs:
        assert (await gateway.admin.request(method, path)).status_code == status
    assert [
        (line["method"], line["path"], line["status"]) for line in logs if line["event"] == "admin_path_refused"
    ] == [(method, path, status)]


async def test_paths_below_a_prefix(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), server={"root_path": "/llm/"})
    chat = {"model": "demo", "messages": [{"role": "user", "content": "Hello."}]}
    for root in ("/llm", ""):
        assert (await gateway.http.post(f"{root}{CHAT}", json=chat)).status_code == 200
        assert (await gateway.http.get(f"{root}/v1/models")).status_code == 200
        assert (await gateway.http.get(f"{root}/health")).status_code == 200
    for path in ("/llmx/v1/models", "/llm/llm/v1/models", "/x/llm/v1/models", "/llm"):
        problem(await gateway.http.get(path), 404, "unknown_path")


async def test_prefix_that_is_also_a_path_hides_it_not(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), server={"root_path": "/health"})
    for path in ("/health", "/health/health", "/health/v1/models", "/v1/models"):
        assert (await gateway.http.get(path)).status_code == 200


@pytest.mark.parametrize("root", ["llm", "/a//b", "/a/../b", "/a b", "/v1", "/%61", "/a?b"])
def test_prefix_that_is_none(root):
    with pytest.raises(ValueError, match="expected a path such as /llm"):
        ServerSettings(root_path=root)
