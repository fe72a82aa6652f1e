"""Who may use the admin port."""

from typing import Any

import pytest
from admin_port import LATE, OPERATOR, PEER, PLAIN, READER, SECRETS, Token, problem

PATHS = (
    "/",
    "/metrics",
    "/admin/api/replicas",
    "/admin/api/config",
    "/admin/api/spaces",
    "/admin/api/warm/j1",
)
ORDERS = (
    ("/admin/api/spaces/reset", {"all": True}),
    ("/admin/api/replicas/drain", {"replica": "r0", "drain": True}),
    ("/admin/api/warm", {"prefixes": []}),
)


def nothing_done(port):
    components = port.components
    return not (components.resets or components.drains or components.orders)


@pytest.mark.parametrize("path", [*PATHS, "/nowhere"])
async def test_nothing_is_shown_without_a_token(guarded, path):
    answer = await guarded.get(path)
    assert "server.admin_token" in problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("path", "order"), ORDERS)
async def test_nothing_is_done_without_a_token(guarded, path, order):
    problem(await guarded.post(path, order), 401, "unauthorized")
    problem(await guarded.post(path, order, "wrong"), 401, "unauthorized")
    assert nothing_done(guarded)


@pytest.mark.parametrize(
    "authorization",
    [
        "Bearer no",
        PLAIN,
        f"Basic {PLAIN}",
        "Bearer",
        f"Bearer {PLAIN} {PLAIN}",
        f"Bearer {PLAIN}x",
        f"Bearer {PLAIN[:-1]}",
        "Bearer é".encode(),
        "Bearer " + "x" * 100_000,
    ],
)
async def test_a_wrong_token_is_refused(guarded, authorization):
    problem(await guarded.get("/metrics", headers={"authorization": authorization}), 401, "unauthorized")


async def test_a_hash_is_no_token(guarded):
    problem(await guarded.get("/metrics", Token("", "", READER).digest.hex()), 401, "unauthorized")


async def test_two_tokens_are_none(guarded):
    answer = await guarded.get("/metrics", PLAIN, headers={"Authorization": f"Bearer {READER}"})
    problem(answer, 401, "unauthorized")


@pytest.mark.parametrize("token", [PLAIN, READER, OPERATOR])
async def test_every_valid_token_may_look(guarded, token):
    for path in PATHS:
        assert (await guarded.get(path, token)).status_code == 200
    lower = {"authorization": f"bearer {token}"}
    assert (await guarded.get("/metrics", headers=lower)).status_code == 200


@pytest.mark.parametrize(("token", "by"), [(PLAIN, "admin_token"), (OPERATOR, "ops")])
async def test_the_operator_is_named_in_what_is_done(guarded, token, by):
    for path, order in ORDERS:
        assert (await guarded.post(path, order, token)).is_success
    assert [who for _, who in (*guarded.components.resets, *guarded.components.orders)] == [by, by]
    assert [(event.event, event.by) for event in guarded.components.events] == [
        ("spaces_reset_asked", by),
        ("replica_drain_asked", by),
        ("warm_asked", by),
    ]


@pytest.mark.parametrize(("path", "order"), ORDERS)
async def test_who_may_only_look_cannot_do_anything(guarded, path, order):
    reported = problem(await guarded.post(path, order, READER), 403, "role_required")
    assert "grafana" in reported
    assert "operate" in reported
    assert nothing_done(guarded)


async def test_an_expired_token_is_reported_as_expired(guarded):
    reported = problem(await guarded.get("/metrics", LATE), 401, "unauthorized")
    assert "expired" in reported
    assert "last-year" in reported


async def test_refusals_are_audited_with_who_and_where(guarded):
    await guarded.get("/admin/api/config?x=secret-query")
    await guarded.get("/metrics", "guess")
    await guarded.get("/metrics", LATE)
    await guarded.post("/admin/api/warm", {}, READER)
    assert [(event.event, event.by, event.details) for event in guarded.components.events] == [
        ("admin_refused", by, {"peer": PEER, "method": method, "path": path, "status": status, "code": code})
        for by, method, path, status, code in (
            ("", "GET", "/admin/api/config", 401, "unauthorized"),
            ("", "GET", "/metrics", 401, "unauthorized"),
            ("last-year", "GET", "/metrics", 401, "unauthorized"),
            ("grafana", "POST", "/admin/api/warm", 403, "role_required"),
        )
    ]
    assert not any(secret in repr(guarded.components.events) for secret in (*SECRETS, "guess", "secret-query"))


async def test_looking_is_not_audited(guarded):
    for path in PATHS:
        await guarded.get(path, READER)
    assert not guarded.components.events


async def test_tokens_are_replaced_while_it_serves(guarded):
    guarded.access.replace(None, [Token("new", "read", "new-t0ken")])
    problem(await guarded.get("/metrics", PLAIN), 401, "unauthorized")
    problem(await guarded.get("/metrics", READER), 401, "unauthorized")
    assert (await guarded.get("/metrics", "new-t0ken")).status_code == 200


async def test_only_expired_tokens_do_not_open_the_port(guarded):
    guarded.access.replace(None, [Token("last-year", "operate", LATE, 1.0)])
    problem(await guarded.get("/metrics"), 401, "unauthorized")


async def test_tokens_are_in_no_representation(guarded):
    assert not any(secret in repr(vars(guarded.access)) for secret in SECRETS)


async def test_the_process_can_be_probed_without_a_token(guarded):
    assert (await guarded.get("/healthz", host="gateway.internal")).json() == {"status": "ok"}
    assert (await guarded.ask("HEAD", "/healthz")).status_code == 200


@pytest.mark.parametrize("host", ["x/healthz?", "x/healthz#", "127.0.0.1/healthz?"])
async def test_a_host_header_cannot_pose_as_another_path(guarded, unguarded, host):
    problem(await guarded.get("/admin/api/config", host=host), 401, "unauthorized")
    problem(await unguarded.get("/admin/api/config", host=host), 403, "host_not_allowed")
    assert [event.details["path"] for event in guarded.components.events] == ["/admin/api/config"]


async def test_a_query_that_is_no_text_changes_nothing(guarded):
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/admin/api/config",
        "query_string": b"\xff",
        "headers": [],
        "client": None,
    }
    await guarded.app(scope, receive, send)
    assert sent[0]["status"] == 401
    assert guarded.components.events[0].details["peer"] == ""


async def test_without_tokens_everybody_who_can_connect_may_do_everything(unguarded):
    for path in PATHS:
        assert (await unguarded.get(path)).status_code == 200
    for path, order in ORDERS:
        assert (await unguarded.post(path, order)).is_success
    assert {event.by for event in unguarded.components.events} == {""}


# Web pages in an operator's browser


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://[::1"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:8081", "sec-fetch-site": "Cross-Site"},
    ],
)
@pytest.mark.parametrize(("path", "order"), ORDERS)
async def test_a_page_of_another_site_can_do_nothing(unguarded, guarded, path, order, headers):
    problem(await unguarded.post(path, order, headers=headers), 403, "cross_site")
    problem(await guarded.post(path, order, OPERATOR, headers=headers), 403, "cross_site")
    assert nothing_done(unguarded)
    assert nothing_done(guarded)
    assert [event.details["code"] for event in guarded.components.events] == ["cross_site"]


@pytest.mark.parametrize("headers", [{"origin": "http://127.0.0.1:8081", "sec-fetch-site": "same-origin"}, {}])
async def test_its_own_page_can(unguarded, headers):
    assert (await unguarded.post("/admin/api/spaces/reset", {"all": True}, headers=headers)).status_code == 200


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
@pytest.mark.parametrize("path", [path for path, _ in ORDERS])
async def test_what_a_form_can_send_is_refused(unguarded, path, media):
    answer = await unguarded.ask("POST", path, content=b'{"all": true}', headers={"content-type": media})
    problem(answer, 415, "unsupported_media_type")
    assert nothing_done(unguarded)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8081",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "127.1",
        "[evil]",
        "localhost@evil",
        "127.0.0.1:8081:9",
    ],
)
async def test_a_name_that_points_here_is_refused_where_no_token_protects(unguarded, guarded, host):
    for method, path in (("GET", "/admin/api/config"), ("POST", "/admin/api/spaces/reset")):
        answer = await unguarded.ask(method, path, headers={"content-type": "application/json"}, host=host)
        assert "127.0.0.1" in problem(answer, 403, "host_not_allowed")
    assert not unguarded.components.resets
    assert (await guarded.get("/admin/api/config", READER, host=host)).status_code == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8081", "[::1]", "[::1]:8081", "localhost", "LocalHost:8081", "localhost.:1"]
)
async def test_this_machine_by_its_own_names_is_not(unguarded, host):
    assert (await unguarded.get("/admin/api/config", host=host)).status_code == 200
