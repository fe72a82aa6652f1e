"""What the admin port shows, and what operators have it do."""

import pytest
from admin_port import OPERATOR, READER, SHOWN, problem

from gateway.core.errors import BadRequest, GatewayError, NotFound
from gateway.core.space import SpaceSelection

RESET = "/admin/api/spaces/reset"
DRAIN = "/admin/api/replicas/drain"
WARM = "/admin/api/warm"


# Looking


async def test_the_front_page_lists_what_there_is(unguarded):
    shown = (await unguarded.get("/")).text
    for path in ("/metrics", "/admin/api/replicas", "/admin/api/config", "/admin/api/spaces", "/healthz"):
        assert path in shown
    for order in (RESET, DRAIN, WARM):
        assert f"POST {order}" in shown


async def test_the_configuration_is_the_one_in_force(unguarded):
    assert (await unguarded.get("/admin/api/config")).json() == {"version": 1}
    unguarded.config = {"version": 2}
    assert (await unguarded.get("/admin/api/config")).json() == {"version": 2}


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", "abc"),
        ("?model=m", "ab"),
        ("?tenant=acme", "ac"),
        ("?tenant=tenant:acme", "ac"),
        ("?tenant=retail", ""),
        ("?tenant=group:retail", "b"),
        ("?tenant=shop", "b"),
        ("?state=ended", "c"),
        ("?model=m&tenant=acme&state=alive", "a"),
        ("?model=&tenant=&state=", "abc"),
        ("?model=nobody", ""),
    ],
)
async def test_spaces_are_filtered(unguarded, query, ids):
    answer = await unguarded.get(f"/admin/api/spaces{query}")
    reported = [space | {"personal_data": [{"kind": "email"}] if space["id"] == "a" else []} for space in SHOWN]
    assert answer.json() == {"spaces": [space for space in reported if str(space["id"]) in ids], "more": False}


@pytest.mark.parametrize(
    ("prompt", "ids"), [("support", "ab"), ("support@v1", "a"), ("support@v2", "b"), ("sup", ""), ("", "abc")]
)
async def test_spaces_of_an_application_or_of_one_version(unguarded, monkeypatch, prompt, ids):
    of_each = ["support@v1", "support@v2", "supporting@v1"]
    spaces = [dict(space) | {"prompt": name} for space, name in zip(SHOWN, of_each, strict=True)]
    monkeypatch.setattr(unguarded.components, "shown", lambda: spaces)
    answer = await unguarded.get(f"/admin/api/spaces?prompt={prompt}")
    assert [space["id"] for space in answer.json()["spaces"]] == list(ids)


async def test_an_unknown_filter_is_no_filter_that_shows_everything(unguarded):
    reported = problem(await unguarded.get("/admin/api/spaces?modle=m"), 400, "unknown_parameter", "modle")
    assert "model" in reported


async def test_unknown_paths_and_wrong_methods(unguarded):
    problem(await unguarded.get("/nowhere"), 404, "unknown_path")
    answer = await unguarded.post("/metrics", {})
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD"
    problem(await unguarded.get(RESET), 405, "method_not_allowed")
    problem(await unguarded.get(DRAIN), 405, "method_not_allowed")


# Resetting


@pytest.mark.parametrize(
    "selection",
    [
        {"model": "m"},
        {"tenant": "acme"},
        {"template_version": "v3"},
        {"prompt": "support@v3"},
        {"prompt": ""},
        {"scope": "de"},
        {"scope": ""},
        {"model": "m", "tenant": "acme", "template_version": "v3", "scope": "de"},
    ],
)
async def test_a_reset_is_for_what_was_selected(guarded, selection):
    answer = await guarded.post(RESET, selection, OPERATOR)
    assert answer.json() == {
        "reset": 1,
        "spaces": [
            {
                "id": "k3v9",
                "model": "m",
                "tenant": "tenant:acme",
                "scope": "de",
                "template_version": "v3+abcd",
                "prompt": "",
            }
        ],
    }
    assert guarded.components.resets == [(SpaceSelection(**selection), "ops")]
    (event,) = guarded.components.events
    assert (event.event, event.by, event.tenant) == ("spaces_reset_asked", "ops", selection.get("tenant", ""))
    assert event.details == {key: value for key, value in selection.items() if key != "tenant"}


async def test_everything_has_to_be_asked_for(unguarded):
    assert (await unguarded.post(RESET, {"all": True})).json()["reset"] == 1
    assert unguarded.components.resets == [(SpaceSelection(), "")]
    assert [event.details for event in unguarded.components.events] == [{"all": True}]


@pytest.mark.parametrize(
    ("order", "code", "param"),
    [
        ({}, "nothing_selected", None),
        ({"modle": "m"}, "unknown_parameter", "modle"),
        ({"x" * 500: 1}, "unknown_parameter", "x" * 60),
        ({"model": None}, "invalid_type", "model"),
        ({"tenant": 5}, "invalid_type", "tenant"),
        ({"scope": ["de"]}, "invalid_type", "scope"),
        ({"tenant": ""}, "invalid_value", "tenant"),
        ({"prompt": "a/b"}, "invalid_value", "prompt"),
        ({"prompt": "support@"}, "invalid_value", "prompt"),
        ({"prompt": "support@v1@v2"}, "invalid_value", "prompt"),
        ({"prompt": "(other)"}, "invalid_value", "prompt"),
        ({"all": False}, "invalid_value", "all"),
        ({"all": 1}, "invalid_value", "all"),
        ({"all": True, "model": "m"}, "conflict", "all"),
        ([], "invalid_type", None),
        ("all", "invalid_type", None),
    ],
)
async def test_an_order_that_is_not_clear_resets_nothing(unguarded, order, code, param):
    problem(await unguarded.post(RESET, order), 400, code, param)
    assert not unguarded.components.resets
    assert not unguarded.components.events


@pytest.mark.parametrize("path", [RESET, DRAIN, WARM])
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"all": NaN}', b"[" * 60_000])
async def test_a_body_that_is_not_json_is_refused(unguarded, path, body):
    answer = await unguarded.ask("POST", path, content=body, headers={"content-type": "application/json"})
    problem(answer, 400, "invalid_json")


@pytest.mark.parametrize(("path", "limit"), [(RESET, 1024 * 1024), (WARM, 16 * 1024 * 1024)])
async def test_bodies_are_bounded(unguarded, path, limit):
    headers = {"content-type": "application/json; charset=utf-8"}
    largest = b'{"prefixes":1}'.ljust(limit) if path == WARM else b'{"all":true}'.ljust(limit)
    assert (await unguarded.ask("POST", path, content=largest, headers=headers)).is_success
    answer = await unguarded.ask("POST", path, content=largest + b" ", headers=headers)
    problem(answer, 413, "request_too_large")


async def test_what_the_spaces_refuse_is_passed_on(unguarded):
    unguarded.components.failure = BadRequest("There is no tenant 'x'.", param="tenant", code="unknown_tenant")
    reported = problem(await unguarded.post(RESET, {"tenant": "x"}), 400, "unknown_tenant", "tenant")
    assert reported == "There is no tenant 'x'."


async def test_a_reset_that_fails_says_why_and_who_asked_stands_in_the_audit_log(guarded):
    guarded.components.failure = GatewayError("spaces.file cannot be written.", code="spaces_file_failed")
    reported = problem(await guarded.post(RESET, {"model": "m"}, OPERATOR), 500, "spaces_file_failed")
    assert reported == "spaces.file cannot be written."
    assert [event.by for event in guarded.components.events] == ["ops"]


async def test_an_internal_failure_is_reported_without_details(unguarded):
    unguarded.components.failure = RuntimeError("secret inside")
    answer = await unguarded.post(RESET, {"all": True})
    problem(answer, 500, "internal_error")
    assert "secret" not in answer.text


# Draining


@pytest.mark.parametrize("on", [True, False])
async def test_an_order_to_drain_is_passed_on_and_audited(guarded, on):
    answer = await guarded.post(DRAIN, {"replica": "r0", "drain": on}, OPERATOR)
    assert answer.status_code == 200
    assert answer.json() == {"replica": "r0", "draining": on, "because": ["operator"] if on else [], "requests": 3}
    assert guarded.components.drains == [("r0", on)]
    (event,) = guarded.components.events
    assert (event.event, event.by, event.details) == ("replica_drain_asked", "ops", {"replica": "r0", "drain": on})


async def test_an_unknown_replica_is_reported_and_not_audited_as_done(guarded):
    guarded.components.failure = NotFound("There is no replica 'x'.", param="replica", code="unknown_replica")
    answer = await guarded.post(DRAIN, {"replica": "x", "drain": True}, OPERATOR)
    reported = problem(answer, 404, "unknown_replica", "replica")
    assert reported == "There is no replica 'x'."
    assert not guarded.components.events


@pytest.mark.parametrize(
    ("order", "code", "param"),
    [
        ({}, "missing_required_parameter", "replica"),
        ({"drain": True}, "missing_required_parameter", "replica"),
        ({"replica": "r0"}, "missing_required_parameter", "drain"),
        ({"replica": 5, "drain": True}, "invalid_type", "replica"),
        ({"replica": ["r0"], "drain": True}, "invalid_type", "replica"),
        ({"replica": "r0", "drain": 1}, "invalid_type", "drain"),
        ({"replica": "r0", "drain": "yes"}, "invalid_type", "drain"),
        ({"replica": "r0", "drain": None}, "invalid_type", "drain"),
        ({"replica": "r0", "drain": True, "for": 60}, "unknown_parameter", "for"),
        ({"replicas": ["r0"], "drain": True}, "unknown_parameter", "replicas"),
        ({"replica": "pgw_" + "a1B2" * 12, "drain": True}, "invalid_value", "replica"),
        ([], "invalid_type", None),
    ],
)
async def test_an_order_to_drain_that_is_not_clear_does_nothing(unguarded, order, code, param):
    problem(await unguarded.post(DRAIN, order), 400, code, param)
    assert not unguarded.components.drains
    assert not unguarded.components.events


async def test_an_order_to_drain_is_bounded(unguarded):
    headers = {"content-type": "application/json"}
    body = b'{"replica":"r0","drain":true}'.ljust(64 * 1024)
    assert (await unguarded.ask("POST", DRAIN, content=body, headers=headers)).is_success
    problem(await unguarded.ask("POST", DRAIN, content=body + b" ", headers=headers), 413, "request_too_large")


# Warming


async def test_an_order_to_warm_becomes_a_job(guarded):
    order = {
        "prefixes": [{"model": "m", "messages": [{"role": "system", "content": "the prompt"}]}],
        "replicas": ["r0"],
    }
    answer = await guarded.post(WARM, order, OPERATOR)
    assert answer.status_code == 202
    assert answer.json() == {"id": "j1", "state": "running", "total": 2}
    assert guarded.components.orders == [(order, "ops")]
    (event,) = guarded.components.events
    assert (event.event, event.by, event.details) == ("warm_asked", "ops", {"job": "j1", "requests": 2})
    assert "the prompt" not in repr(event)


async def test_a_job_can_be_looked_at(unguarded):
    assert (await unguarded.get(f"{WARM}/j1")).json()["state"] == "done"
    problem(await unguarded.get(f"{WARM}/j2"), 404, "unknown_job")
    problem(await unguarded.get(f"{WARM}/{'x' * 5000}"), 404, "unknown_job")


async def test_a_wrong_order_to_warm_is_refused_with_its_param(unguarded):
    problem(await unguarded.post(WARM, {}), 400, "missing", "prefixes")
    problem(await unguarded.post(WARM, []), 400, "invalid_type")
    assert not unguarded.components.events


async def test_spaces_are_cut_at_a_limit_and_that_is_reported(unguarded):
    for limit, more in ((1, True), (2, True), (3, False)):
        answer = (await unguarded.get(f"/admin/api/spaces?limit={limit}")).json()
        assert (len(answer["spaces"]), answer["more"]) == (limit, more)
    for wrong in ("0", "-1", "x", "1.5", "1000000"):
        answer = await unguarded.get(f"/admin/api/spaces?limit={wrong}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


# Replicas that are added


ADDED = {"model": "m", "url": "http://r7:8000", "id": "r7", "region": "eu", "api_key": "a-secret-of-the-engine"}


async def test_an_added_replica_is_passed_on_and_audited_without_its_key(guarded):
    answer = await guarded.post("/admin/api/replicas", ADDED, OPERATOR)
    assert (answer.status_code, answer.json()) == (200, {"replica": "r7", "model": "m", "url": "http://r7:8000"})
    (added,) = guarded.components.added
    assert (added.id, added.model, added.region) == ("r7", "m", "eu")
    answer = await guarded.ask("DELETE", "/admin/api/replicas/r7", OPERATOR)
    assert (answer.status_code, answer.json(), guarded.components.removed) == (200, {"replica": "r7"}, ["r7"])
    one, other = guarded.components.events
    assert (one.event, one.by, other.event, other.by) == ("replica_add_asked", "ops", "replica_remove_asked", "ops")
    assert (one.details, other.details) == ({"replica": "r7", "model": "m", "url": "http://r7:8000"}, {"replica": "r7"})


@pytest.mark.parametrize(
    ("order", "code", "param"),
    [
        ({"url": "http://r7:8000"}, "missing_required_parameter", "model"),
        ({"model": "m"}, "missing_required_parameter", "url"),
        (ADDED | {"model": 7}, "invalid_value", "model"),
        (ADDED | {"url": "ftp://r7"}, "invalid_value", "url"),
        (ADDED | {"url": "http://r7:8000/v1"}, "invalid_value", "url"),
        (ADDED | {"id": "a b"}, "invalid_value", "id"),
        (ADDED | {"region": "?"}, "invalid_value", "region"),
        (ADDED | {"events": "http://r7"}, "invalid_value", "events"),
        (ADDED | {"weight": 2}, "unknown_parameter", "weight"),
    ],
)
async def test_an_invalid_replica_is_refused_with_the_field_at_fault(guarded, order, code, param):
    reported = problem(await guarded.post("/admin/api/replicas", order, OPERATOR), 400, code, param)
    assert f"`{param}`" in reported
    assert ADDED["api_key"] not in reported
    assert (guarded.components.added, guarded.components.events) == ([], [])


@pytest.mark.parametrize("path", ["/admin/api/replicas/r7", "/admin/api/sessions/s1"])
async def test_what_is_deleted_needs_an_operator_of_this_site(guarded, unguarded, path):
    problem(await guarded.ask("DELETE", path, READER), 403, "role_required")
    problem(await guarded.ask("DELETE", path), 401, "unauthorized")
    problem(await unguarded.ask("DELETE", path, headers={"origin": "http://evil.example"}), 403, "cross_site")
    assert (guarded.components.removed, unguarded.components.removed) == ([], [])


async def test_a_session_is_ended_and_its_end_is_audited(guarded):
    answer = await guarded.ask("DELETE", "/admin/api/sessions/team/7?tenant=acme", OPERATOR)
    assert answer.status_code == 200
    assert guarded.components.questions == [("end_session", {"tenant": "acme", "id": "team/7"})]
    (event,) = guarded.components.events
    assert (event.event, event.by, event.tenant) == ("session_end_asked", "ops", "acme")
    assert event.details == {"session": "team/7"}
