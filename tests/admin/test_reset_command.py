"""``prefix-gateway reset`` against an admin port on a socket."""

import argparse
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from admin_port import LATE, OPERATOR, PLAIN, READER, SECRETS, TOKENS, AdminPort, FakeComponents
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse

from gateway.admin import AdminAccess
from gateway.commands import reset
from gateway.commands.admin_client import TOKEN_VARIABLE, AdminClient, AdminNotReachable, AdminProblem, AdminRefused
from gateway.core.errors import BadRequest
from gateway.core.space import SpaceSelection


class Serving:
    """An application on a free loopback port, in a thread of its own."""

    def __init__(self, app: Starlette) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, ws="none"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture
def serve():
    running: list[Serving] = []

    def start(app: Starlette) -> str:
        running.append(Serving(app))
        return running[-1].url

    yield start
    for each in running:
        each.stop()


@pytest.fixture(scope="module")
def port() -> Iterator[tuple[str, FakeComponents]]:
    admin = AdminPort(AdminAccess(PLAIN, TOKENS))
    serving = Serving(admin.app)
    yield serving.url, admin.components
    serving.stop()


@pytest.fixture
def components(port: tuple[str, FakeComponents]) -> FakeComponents:
    _, found = port
    found.events, found.resets, found.failure = [], [], None
    return found


@pytest.fixture
def run(port: tuple[str, FakeComponents], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs the command: its exit code, standard output and standard error."""

    def call(*words: str, url: str | None = None, token: str | None = OPERATOR) -> tuple[int, str, str]:
        if token is None:
            monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(TOKEN_VARIABLE, token)
        parser = argparse.ArgumentParser(prog="prefix-gateway reset")
        reset.add_arguments(parser)
        try:
            code = reset.run(parser.parse_args([*words, "--url", url or port[0]]))
        except SystemExit as end:
            code = int(str(end.code))
        reported = capsys.readouterr()
        # In every case no token is shown.
        assert not any(secret in reported.out + reported.err for secret in SECRETS)
        return code, reported.out, reported.err

    return call


def test_a_selection_is_reset(run, components):
    code, out, err = run("--model", "m", "--tenant", "acme", "--template-version", "v3", "--scope", "de")
    assert (code, err) == (0, "")
    assert out == "1 prefix space reset\n  id=k3v9  model=m  tenant=tenant:acme  scope=de  template_version=v3+abcd\n"
    assert components.resets == [(SpaceSelection("m", "acme", "v3", "de"), "ops")]


def test_everything_is_reset_with_all_only(run, components):
    assert run("--all")[0] == 0
    assert components.resets == [(SpaceSelection(), "ops")]


def test_the_empty_scope_is_a_selection(run, components):
    assert run("--scope", "")[0] == 0
    assert components.resets == [(SpaceSelection(scope=""), "ops")]


def test_json_lists_what_was_reset(run, components):
    code, out, _ = run("--all", "--json")
    assert code == 0
    assert json.loads(out) == {
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


def test_the_token_may_stand_in_a_file(run, components, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"{PLAIN}\n")
    assert run("--all", "--token-file", str(file), token=READER)[0] == 0
    assert [by for _, by in components.resets] == ["admin_token"]


def test_nothing_that_matches_is_a_problem(run, components, monkeypatch):
    async def nothing(*_: object) -> list[object]:
        return []

    monkeypatch.setattr(components, "reset", nothing)
    code, out, err = run("--model", "m")
    assert (code, out) == (1, "")
    assert "nothing matched" in err
    code, out, err = run("--model", "m", "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["code"] == "nothing_matched"


@pytest.mark.parametrize(
    ("token", "reported"),
    [
        (None, TOKEN_VARIABLE),
        ("wr0ng", "not valid"),
        (READER, "role operate"),
        (LATE, "expired"),
    ],
)
def test_a_refusal_says_why(run, components, token, reported):
    code, out, err = run("--all", token=token)
    assert (code, out) == (1, "")
    assert err.startswith("prefix-gateway reset: refused: ")
    assert reported in err
    assert err.count("\n") == 1
    assert "wr0ng" not in err
    assert not components.resets


def test_what_is_unknown_is_named(run, components):
    components.failure = BadRequest("There is no tenant 'x'.", param="tenant", code="unknown_tenant")
    assert run("--tenant", "x") == (1, "", "prefix-gateway reset: refused: tenant: There is no tenant 'x'.\n")
    code, out, _ = run("--tenant", "x", "--json")
    assert code == 1
    assert json.loads(out)["code"] == "unknown_tenant"


@pytest.mark.parametrize("prompt", ["a/b", "support@", "(other)"])
def test_what_cannot_be_an_application_is_bad_usage(run, components, prompt):
    code, out, err = run("--prompt", prompt)
    assert (code, out) == (2, "")
    assert err.startswith("prefix-gateway reset: --prompt must be ID or ID@VERSION, ")
    assert not components.resets


@pytest.mark.parametrize("prompt", ["support", "support@v1", ""])
def test_an_application_is_named_by_id_and_version(run, components, prompt):
    assert run("--prompt", prompt)[0] == 0
    assert [selection.prompt for selection, _ in components.resets] == [prompt]


@pytest.mark.parametrize("words", [(), ("--json",), ("--all", "--model", "m"), ("--nonsense",), ("--model",)])
def test_bad_usage(run, components, words):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert "prefix-gateway reset: " in err
    assert not components.resets


def test_a_token_is_not_taken_from_the_command_line(run, components, tmp_path):
    code, _, err = run("--all", "--token", str(tmp_path))
    assert code == 2
    assert "unrecognized" in err


def test_an_unreachable_gateway_is_one_clear_line(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = f"http://127.0.0.1:{taken.getsockname()[1]}"
    code, out, err = run("--all", url=free)
    assert (code, out) == (2, "")
    assert free in err
    assert "server.admin_port" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8081",
        "ftp://h",
        "http://",
        "http://h:0",
        "http://h:99999",
        "http://[::1",
        "http://h h",
        "http://user:hunter2@h",
        "http://h?x=hunter2",
        "",
    ],
)
def test_a_url_that_cannot_be_used(run, url):
    code, _, err = run("--all", url=url or " ")
    assert code == 2
    assert "--url" in err
    assert "hunter2" not in err


@pytest.mark.parametrize("content", [b"", b"two words", b"caf\xc3\xa9", b"\xff", b"a\nb", None])
def test_a_token_file_that_cannot_be_used(run, components, tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    code, _, err = run("--all", "--token-file", str(file), token=None)
    assert code == 2
    assert str(file) in err
    assert not components.resets


def test_a_token_is_not_sent_on_to_where_an_answer_points(run, serve, components, port):
    app = Starlette()
    app.add_route(
        "/admin/api/spaces/reset", lambda _: RedirectResponse(f"{port[0]}/admin/api/spaces/reset"), methods=["POST"]
    )
    code, _, err = run("--all", url=serve(app))
    assert code == 2
    assert "no admin port" in err
    assert not components.resets


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("hello"),
        JSONResponse([]),
        JSONResponse({}),
        JSONResponse({"spaces": [1]}),
        JSONResponse({"detail": "Not Found"}, 404),
        JSONResponse({"error": {"message": "There is nothing at POST /admin.", "code": "unknown_path"}}, 404),
        PlainTextResponse("bad gateway", 502),
    ],
)
def test_another_server_that_answers_is_recognized(run, serve, answer):
    app = Starlette()
    app.add_route("/admin/api/spaces/reset", lambda _: answer, methods=["POST"])
    code, out, err = run("--all", url=serve(app))
    assert (code, out) == (2, "")
    assert "of this release" in err
    assert err.count("\n") == 1


def test_what_an_answer_says_cannot_move_the_cursor(run, serve):
    app = Starlette()
    error = {"error": {"message": "no\x1b[2J\nway", "type": "x", "param": None, "code": "odd"}}
    app.add_route("/admin/api/spaces/reset", lambda _: JSONResponse(error, 400), methods=["POST"])
    assert run("--all", url=serve(app)) == (1, "", "prefix-gateway reset: refused: no [2J way\n")


def test_proxies_of_the_environment_are_not_given_the_token(run, components, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert run("--all")[0] == 0


def test_the_client_reads_as_well_as_orders(port, components):
    with AdminClient(f"{port[0]}/", READER) as admin:
        assert admin.get("me") == {"id": "grafana", "role": "read", "asks_for_token": True}
        assert admin.get("warm/j1")["state"] == "done"
        with pytest.raises(AdminRefused) as refused:
            admin.get("warm/j2")
        assert (refused.value.status, refused.value.code, refused.value.exit_code) == (404, "unknown_job", 1)
    with pytest.raises(AdminNotReachable) as not_reachable:
        AdminClient("nonsense", None)
    assert not_reachable.value.exit_code == 2
    assert issubclass(AdminNotReachable, AdminProblem)


def test_help_has_an_example(capsys):
    parser = argparse.ArgumentParser(prog="prefix-gateway reset")
    reset.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    reported = capsys.readouterr().out
    assert "prefix-gateway reset --tenant acme" in reported

    assert "--token " not in reported
