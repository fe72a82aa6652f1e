"""Sessions, subagents and the API that clients speak, as the admin port shows them."""

import contextlib
import json

import httpx
import pytest
from running_gateway import CHAT, RunningGateway, eventually
from tenancy import ask_as, sections, tenant

from gateway.api import PublicApp
from gateway.api.dialects import Translated
from gateway.core.client_places import ClientPlaces
from gateway.proxy.forwarding_sink import ForwardingSink

ON = {"enabled": True}
STYLE = "Read files, mend what is broken, run the tests, and say in one sentence what you did and found. "
MAIN, SUBAGENT = f"You are the main agent. {STYLE * 12}", f"You are a subagent that searches. {STYLE * 12}"


async def detail(gateway: RunningGateway, request_id: str):
    async def there() -> bool:
        return (await gateway.admin.get(f"/admin/api/requests/{request_id}")).status_code == 200

    await eventually(there)
    return (await gateway.admin.get(f"/admin/api/requests/{request_id}")).json()


async def shown(gateway: RunningGateway, path: str = ""):
    return await gateway.admin.get(f"/admin/api/sessions{path}")


async def test_the_same_id_of_two_tenants_is_two_sessions(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), explain=ON, **sections(tenant("acme"), tenant("globex")))
    for number, name in enumerate(("acme", "acme", "globex")):
        headers = {"x-session-id": "s1", "x-request-id": f"{name}-{number}"}
        assert (await ask_as(gateway, name, f"Question {number}.", headers=headers)).status_code == 200
        assert (await detail(gateway, f"{name}-{number}"))["session"] == "s1"
    assert (await detail(gateway, "acme-1"))["reference"]["id"] == "acme-0"
    assert (await detail(gateway, "globex-2"))["reference"] is None
    listed = (await shown(gateway)).json()
    assert [(each["tenant"], each["id"], each["requests"]) for each in listed["sessions"]] == [
        ("globex", "s1", 1),
        ("acme", "s1", 2),
    ]
    assert (await shown(gateway, "?tenant=acme&limit=1")).json()["sessions"] == listed["sessions"][1:]
    ambiguous = (await shown(gateway, "/s1")).json()["error"]
    assert (ambiguous["param"], ambiguous["code"]) == ("tenant", "missing_required_parameter")
    assert (await gateway.admin.delete("/admin/api/sessions/s1")).status_code == 400
    ended = await gateway.admin.delete("/admin/api/sessions/s1?tenant=acme")
    assert (ended.status_code, ended.json()["requests"]) == (200, 2)
    assert (await shown(gateway, "/s1")).json()["tenant"] == "globex"
    assert (await gateway.admin.delete("/admin/api/sessions/s1?tenant=acme")).json()["error"][
        "code"
    ] == "unknown_session"
    headers = {"x-session-id": "s1", "x-request-id": "acme-3"}
    await ask_as(gateway, "acme", "Question 0.", headers=headers)
    assert (await detail(gateway, "acme-3"))["reference"] is None
    assert (await shown(gateway, "/s1?tenant=acme")).json()["requests"] == 1


async def test_a_subagent_is_shown_and_is_no_changed_system_prompt(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), explain=ON)
    session = {"x-claude-code-session-id": "c-1"}
    agent = session | {"x-claude-code-agent-id": "a-2", "x-claude-code-parent-agent-id": "a-1"}
    for request_id, system, headers in (("main", MAIN, session), ("sub", SUBAGENT, agent)):
        body = {
            "model": "demo",
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": "Go."}],
        }
        answer = await gateway.http.post(CHAT, json=body, headers=headers | {"x-request-id": request_id})
        assert answer.status_code == 200
    found = await detail(gateway, "sub")
    assert (found["session"], found["agent"], found["parent_agent"]) == ("c-1", "a-2", "a-1")
    assert {each["reason"] for each in found["missed"]} <= {"first_seen", "new_content", "block_boundary"}
    (listed,) = (await shown(gateway)).json()["sessions"]
    assert (listed["agents"], listed["requests"]) == (["a-2"], 2)


async def test_a_conversation_without_an_id_is_known_by_its_prefix(start_engine, start_gateway):
    gateway = await start_gateway(await start_engine(), explain=ON)
    messages = [{"role": "system", "content": MAIN}, {"role": "user", "content": "What is wrong with the build? " * 8}]
    for request_id in ("one", "two"):
        body = {"model": "demo", "messages": messages, "max_tokens": 40, "user": "anna@example.com"}
        answer = await gateway.http.post(CHAT, json=body, headers={"x-request-id": request_id})
        messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "And then?"}]
        found = await detail(gateway, request_id)
        assert (found["session"], found["conversation"]) == ("", "one")
        assert "anna" not in json.dumps(found)
    (listed,) = (await shown(gateway)).json()["sessions"]
    assert (listed["id"], listed["named"], listed["requests"]) == ("one", False, 2)


class Echo:
    """An API whose requests are chat requests, but for ``text``."""

    name = "echo"

    async def translate(self, asked):
        fields = {name: value for name, value in asked.fields.items() if name not in ("text", "metadata")}
        fields["messages"] = [{"role": "user", "content": asked.fields["text"]}]
        return Translated(fields, ClientPlaces(["text"]), lambda sink: contextlib.nullcontext(Passing(sink)))

    def refusal(self, problem, request_id):
        return problem.status, json.dumps({"refused": problem.message}).encode()


class Passing(ForwardingSink):
    def __init__(self, sink):
        self._sink = sink

    def start(self, status, headers):
        self._sink.start(status, headers)

    def write(self, data, *, more, chunk=None):
        self._sink.write(data, more=more, chunk=chunk)


class EchoingApp(PublicApp):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.dialects = {**self.dialects, "/v1/echo": Echo()}


@pytest.fixture
async def translating(start_engine, start_gateway, monkeypatch):
    monkeypatch.setattr("gateway.app.PublicApp", EchoingApp)
    return await start_gateway(await start_engine(), explain=ON)


async def ask_translated(gateway: RunningGateway, request_id: str, **fields) -> httpx.Response:
    body = {"model": "demo", "text": "Hello.", "max_tokens": 1} | fields
    return await gateway.http.post("/v1/echo", json=body, headers={"x-request-id": request_id})


async def test_translated_requests_are_counted_and_shown_by_their_api(translating, capsys):
    metadata = {"user_id": json.dumps({"session_id": "m-1"})}
    assert (await ask_translated(translating, "t1", metadata=metadata)).status_code == 200
    assert (await ask_translated(translating, "t2", model="none")).status_code == 404
    assert (await translating.ask("Hello.", max_tokens=1)).status_code == 200
    found = await detail(translating, "t1")
    assert (found["dialect"], found["endpoint"], found["session"]) == ("echo", CHAT, "m-1")
    metrics = await translating.settled(3)
    assert metrics.value("gateway_translated_requests_total", model="demo", dialect="echo", status="200") == 1
    assert metrics.value("gateway_translated_requests_total", dialect="echo", status="404") == 1
    assert metrics.value("gateway_translated_requests_total") == 2
    assert capsys.readouterr().out.count("dialect=echo") == 2
