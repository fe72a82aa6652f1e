"""Replicas that refuse the gateway: its key, its path, with a redirect, or because they do not have the model."""

import json

import pytest
import structlog
from api_errors import problem
from scripted_engine import response

INNER = "https://vllm-0.inner.example:8443/v1/chat/completions?token=secret"
NOT_LOADED = (
    b'{"error":{"message":"The model `demo` does not exist.","type":"NotFoundError","param":"model","code":404}}'
)
FLAT = b'{"object":"error","message":"Model demo not found","type":"NotFoundError","param":null,"code":404}'
PATH_IN_SHAPE = b'{"error":{"message":"Not Found","type":"Not Found","param":null,"code":404}}'

REFUSALS = {
    "key": (401, b'{"error":"Unauthorized"}', "api_key"),
    "key, in shape": (401, b'{"error":{"message":"Incorrect API key provided: old","code":401}}', "api_key"),
    "path": (404, b'{"detail":"Not Found"}', "url"),
    "path, HTML": (404, b"<html>nginx</html>", "url"),
    "path, empty": (404, b"", "url"),
    "path, in shape": (404, PATH_IN_SHAPE, "url"),
    "model": (404, NOT_LOADED, "model"),
    "model, flat": (404, FLAT, "model"),
    "method": (405, b'{"detail":"Method Not Allowed"}', "url"),
    "proxy": (407, b"", "url"),
    "host": (421, b"", "url"),
    "protocol": (426, b"", "url"),
    "moved": (301, b"", "redirect"),
    "see other": (303, b"", "redirect"),
    "temporary": (307, b"", "redirect"),
    "permanent": (308, b"", "redirect"),
}
FORBIDDEN = (403, b"<html>no</html>", "api_key")
CLIENTS = {
    "adapter": (
        404,
        b'{"error":{"message":"The adapter `x` of model `demo` does not exist.","param":null,"code":404}}',
    ),
    "another model's name": (404, b'{"error":{"message":"The model `demo:x` does not exist.","code":404}}'),
    "field": (400, b'{"error":{"message":"bad","code":400}}'),
    "form": (422, b'{"detail":[]}'),
    "too large": (413, b"<html>413</html>"),
    "own error": (500, b'{"error":{"message":"bad","code":500}}'),
    "not there": (501, b""),
}
TURNS = {"placement": {"policy": "round_robin"}}


def says(scripted, status, body):
    location = [f"location: {INNER}"] if 300 <= status < 400 else []
    scripted.says(response(body, *location, "www-authenticate: Basic", status=f"{status} X"))


def asked(refusals):
    """Each refusal of a request for a whole answer, and one of each class of status of one for a stream."""
    streamed = [name for name in refusals if name in ("key", "path", "moved")]
    cases = [(False, name) for name in refusals] + [(True, name) for name in streamed]
    return [pytest.param(stream, *refusals[name], id=f"{name}{', stream' * stream}") for stream, name in cases]


@pytest.mark.parametrize(("stream", "status", "body", "where"), asked(REFUSALS))
async def test_another_replica_answers(start_gateway, start_engine, scripted, stream, status, body, where):
    says(scripted, status, body)
    gateway = await start_gateway(scripted, await start_engine(), **TURNS)
    with structlog.testing.capture_logs() as logs:
        answers = [await gateway.ask(stream=stream, max_tokens=2) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len(scripted.received) == 1
    (failed,) = [line for line in logs if line["event"] == "attempt_failed"]
    assert (failed["log_level"], failed["replica"], failed["stage"], failed["status"]) == (
        "warning",
        "r0",
        "refused",
        status,
    )
    assert failed["problem"].startswith(f"{status}: ")
    assert where in failed["problem"]
    assert ("vllm-0.inner.example" in failed["problem"]) == (300 <= status < 400)
    assert "secret" not in failed["problem"]
    metrics = await gateway.settled(4)
    assert metrics.value("gateway_failovers_total", stage="refused") == 1
    shown = (await gateway.replicas())["r0"]
    assert (shown["state"], shown["refusal"]) == ("suspect", failed["problem"])
    assert (await gateway.replicas())["r1"]["refusal"] == ""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_403_may_be_the_requests_fault_three_in_a_row_are_not(start_gateway, start_engine, scripted, stream):
    status, body, where = FORBIDDEN
    says(scripted, status, body)
    gateway = await start_gateway(scripted, await start_engine(), **TURNS)
    for refused in (1, 2, 3):
        shown = (await gateway.replicas())["r0"]
        assert (shown["state"], shown["refusal"]) == ("ready", "")
        while len(scripted.received) < refused:
            assert (await gateway.ask(stream=stream, max_tokens=2)).status_code == 200
    assert (await gateway.ask(stream=stream, max_tokens=2)).status_code == 200
    shown = (await gateway.replicas())["r0"]
    assert shown["state"] == "suspect"
    assert where in shown["refusal"]
    assert len(scripted.received) == 3


@pytest.mark.parametrize(("stream", "status", "body", "where"), asked(REFUSALS | {"forbidden": FORBIDDEN}))
async def test_the_client_gets_one_502_if_all_refuse(behind, scripted, stream, status, body, where):
    says(scripted, status, body)
    answer = await behind.ask(stream=stream)
    message = problem(answer, 502, "replica_refused")
    assert "inner" not in answer.text
    assert scripted.url not in answer.text
    assert "old" not in message.split()
    assert not {"location", "www-authenticate"} & set(answer.headers)
    metrics = await behind.settled(1)
    assert metrics.value("gateway_requests_total", status="502") == 1


@pytest.mark.parametrize(("status", "body"), CLIENTS.values(), ids=CLIENTS)
async def test_what_is_about_the_request_reaches_the_client(start_gateway, scripted, start_engine, status, body):
    says(scripted, status, body)
    gateway = await start_gateway(scripted, await start_engine(), **TURNS)
    answers = [await gateway.ask(max_tokens=1) for _ in range(4)]
    assert {answer.status_code for answer in answers} == {200, status}
    refused = [answer for answer in answers if answer.status_code == status]
    assert {answer.content for answer in refused} == {body}
    assert (await gateway.replicas())["r0"]["refusal"] == ""
    assert (await gateway.settled(4)).value("gateway_failovers_total") == 0


@pytest.mark.parametrize("status", [401, 403])
async def test_a_clients_own_key_is_the_clients(start_gateway, scripted, status):
    says(scripted, status, b'{"error":"Unauthorized"}')
    gateway = await start_gateway(scripted, relay={"forward_authorization": True})
    answer = await gateway.ask(headers={"authorization": "Bearer mine"})
    assert (answer.status_code, answer.json()) == (status, {"error": "Unauthorized"})
    assert (await gateway.replicas())["r0"]["state"] == "ready"


async def test_a_replica_that_takes_requests_again_refuses_no_more(start_gateway, scripted):
    says(scripted, 401, b"")
    gateway = await start_gateway(scripted)
    problem(await gateway.ask(), 502, "replica_refused")
    assert (await gateway.replicas())["r0"]["refusal"].startswith("401: ")
    scripted.answer = scripted.reply
    assert (await gateway.ask()).status_code == 200
    shown = (await gateway.replicas())["r0"]
    assert (shown["state"], shown["refusal"]) == ("ready", "")


async def test_refusals_take_nothing_from_the_retry_budget(start_gateway, start_engine, scripted):
    says(scripted, 401, b"")
    relay = {"retry_floor": 0, "retry_share": 0, "suspect_seconds": 0}
    gateway = await start_gateway(scripted, await start_engine(), relay=relay, **TURNS)
    assert {(await gateway.ask(max_tokens=1)).status_code for _ in range(6)} == {200}
    assert len(scripted.received) > 1


@pytest.mark.parametrize("status", [408, 520, 522, 529])
async def test_what_a_proxy_says_of_its_server_is_retried(start_gateway, start_engine, scripted, status):
    says(scripted, status, b"")
    gateway = await start_gateway(scripted, await start_engine(), **TURNS)
    assert [(await gateway.ask(max_tokens=1)).status_code for _ in range(3)] == [200] * 3
    stage = "busy" if status == 529 else "status"
    assert (await gateway.settled(3)).value("gateway_failovers_total", stage=stage) >= 1


async def test_paths_may_end_with_a_slash(gateway):
    asked = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    assert (await gateway.http.post("/v1/chat/completions/", json=asked)).status_code == 200
    assert (await gateway.http.post("/v1/completions/", json={"model": "demo", "prompt": "Hi"})).status_code == 200
    for path in ("/v1/models", "/v1/models/demo", "/version", "/healthz", "/readyz"):
        found, slashed = await gateway.http.get(path), await gateway.http.get(path + "/")
        assert (slashed.status_code, slashed.content) == (found.status_code, found.content)
    refused = await gateway.http.get("/v1/chat/completions/")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert "/v1/nothing" in json.dumps((await gateway.http.get("/v1/nothing/")).json())
