"""``prefix-gateway warm`` against something that answers as the admin port does."""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gateway.commands import warm

GOOD = "- {model: m, prompt: One}\n- model: m\n  prompt: Two\n  tenant: acme\n"
STATES = [
    {"state": "running", "done": 0, "failed": 0},
    {"state": "running", "done": 1, "failed": 0},
    {"state": "done", "done": 2, "failed": 0},
]
JOB = {"id": "j1", "reason": "", "total": 2, "seconds": 1.25, "down": [], "failures": []}


class Admin:
    """Answers ``POST warm`` and each ``GET warm/j1`` with the next state; the last one stays.

    ``refuses``: methods that get an error instead, with its status and body.
    """

    def __init__(self):
        self.states = [JOB | state for state in STATES]
        self.refuses = {}
        self.order = None
        self.headers = {}
        self.looks = 0
        admin = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                admin.order = json.loads(self.rfile.read(int(self.headers["content-length"])))
                admin.headers = dict(self.headers)
                self._answer("/admin/api/warm", 202, admin.states[0])

            def do_GET(self):
                admin.looks += 1
                self._answer("/admin/api/warm/j1", 200, admin.states[min(admin.looks, len(admin.states) - 1)])

            def _answer(self, path, status, reported):
                if self.path != path:
                    status, reported = refusal(404, "There is nothing here.", code="unknown_path")
                status, reported = admin.refuses.get(self.command, (status, reported))
                body = json.dumps(reported).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self):
        """May be repeated."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


@pytest.fixture
def admin():
    admin = Admin()
    yield admin
    admin.close()


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "p.yaml"
    file.write_text(GOOD)
    return file


@pytest.fixture
def command(admin, file, monkeypatch, capsys):
    """Runs the command; exit code, standard output, standard error."""
    monkeypatch.setattr(warm, "_LOOK_SECONDS", 0.001)
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)

    def run(*arguments):
        parser = argparse.ArgumentParser()
        warm.add_arguments(parser)
        try:
            code = warm.run(parser.parse_args([str(file), "--url", admin.url, *arguments]))
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return code, out, err.replace(f"{file.parent}/", "")

    return run


def refusal(status, message, param=None, code="x"):
    return status, {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def test_sends_the_file_and_waits_for_the_end(command, admin):
    code, out, err = command()
    assert (code, out) == (0, "2 of 2 requests answered, in 1.2 s\n")
    assert err.startswith("0 of 2\n")
    assert admin.order == {
        "prefixes": [{"model": "m", "prompt": "One"}, {"model": "m", "prompt": "Two", "tenant": "acme"}]
    }
    assert admin.looks >= 2


def test_options_travel(command, admin, tmp_path, monkeypatch):
    token = tmp_path / "token"
    token.write_text("t0ken\n")
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "other")
    code, _, _ = command("--replica", "a", "--replica", "b", "--rate", "2.5", "--token-file", str(token))
    assert code == 0
    assert (admin.order["replicas"], admin.order["requests_per_second"]) == (["a", "b"], 2.5)
    assert admin.headers["authorization"] == "Bearer t0ken"
    command()
    assert admin.headers["authorization"] == "Bearer other"


def test_json_is_the_job(command, admin):
    code, out, _ = command("--json")
    assert code == 0
    assert json.loads(out) == admin.states[-1]


def test_on_a_terminal_progress_is_one_line_that_changes(command, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    _, _, err = command()
    assert err == "\r0 of 2\x1b[K\r1 of 2\x1b[K\r\x1b[K"


def test_failures_are_reported_with_the_line_of_their_prefix(command, admin):
    failures = [
        {"index": 1, "replica": "b", "rank": 1, "status": 400, "message": "No user query found"},
        {"index": 0, "replica": "a", "rank": 0, "status": None, "message": "no answer"},
    ]
    admin.states[-1] |= {"done": 1, "failed": 5, "total": 6, "failures": failures, "down": ["c"]}
    code, out, err = command()
    assert (code, out) == (1, "1 of 6 requests answered, 5 failed, in 1.2 s\n")
    assert err.splitlines()[1:] == [
        "p.yaml:2: [1]: at b, rank 1: 400: No user query found",
        "p.yaml:1: [0]: at a: no answer",
        "and 3 more",
        "left out, because they are down or drain: c",
    ]
    code, out, _ = command("--json")
    assert (code, json.loads(out)["failed"]) == (1, 5)


def test_a_cancelled_job_is_no_success(command, admin):
    admin.states[-1] |= {"state": "cancelled", "reason": "the gateway is shutting down", "done": 1}
    code, out, err = command()
    assert (code, out) == (1, "1 of 2 requests answered, in 1.2 s\n")
    assert err.endswith("cancelled: the gateway is shutting down\n")


def test_mistakes_in_the_file_are_reported_before_anything_is_sent(command, admin, file):
    file.write_text("- {model: m}\n- {model: 1, prompt: x}\n")
    code, out, err = command("--json")
    assert (code, out, admin.order) == (2, "", None)
    assert [line.split(": ")[0] for line in err.splitlines()] == ["p.yaml:1", "p.yaml:2"]


@pytest.mark.parametrize(
    ("param", "message", "expected"),
    [
        ("prefixes[1].tenant", "`prefixes[1].tenant`: there is no tenant 'acme'.", "p.yaml:4: [1].tenant: there is no"),
        ("prefixes[1].messages[0].role", "`prefixes[1].messages[0].role`: bad", "p.yaml:2: [1].messages[0].role: bad"),
        ("prefixes[0]", "bad", "p.yaml:1: [0]: bad"),
        ("replicas", "`replicas`: there is no replica 'a'.", "prefix-gateway warm: `replicas`: there is no"),
        (None, "32 jobs are running already.", "prefix-gateway warm: 32 jobs are running already."),
    ],
)
def test_what_the_gateway_refuses_is_reported_at_its_place(command, admin, param, message, expected):
    admin.refuses["POST"] = refusal(400, message, param)
    code, out, err = command()
    assert (code, out) == (2, "")
    assert err.startswith(expected)
    assert len(err.splitlines()) == 1


def test_a_token_without_the_permission_is_reported(command, admin):
    admin.refuses["POST"] = refusal(403, "This token may only read.", code="role_required")
    code, _, err = command()
    assert (code, err) == (2, "prefix-gateway warm: This token may only read.\n")


def test_gateway_cannot_be_reached(command, admin):
    admin.close()
    code, _, err = command()
    assert code == 2
    assert err.startswith(f"prefix-gateway warm: cannot reach the admin port at {admin.url}")


def test_the_gateway_goes_away_meanwhile(command, admin, monkeypatch):
    admin.states = [JOB | STATES[0]]
    look = warm._Watch._look

    def gone(self):
        if admin.looks == 2:
            admin.close()
        return look(self)

    monkeypatch.setattr(warm._Watch, "_look", gone)
    code, _, err = command()
    assert code == 2
    assert err.splitlines()[-1].startswith(f"cannot reach the admin port at {admin.url}")
    assert err.splitlines()[-1].endswith(
        f"The job went on as long as the gateway did: GET {admin.url}/admin/api/warm/j1"
    )


def test_a_gateway_that_does_not_know_the_job_any_more(command, admin):
    admin.refuses["GET"] = refusal(404, "There is no job j1.", code="unknown_job")
    code, _, err = command()
    assert code == 1
    assert err.splitlines()[-1] == (
        "the gateway does not know the job any more: it was restarted. Not everything may have been sent."
    )


@pytest.mark.parametrize("rate", ["0", "-1", "x", "nan", "inf"])
def test_a_rate_that_is_none(command, admin, rate):
    code, _, err = command("--rate", rate)
    assert (code, admin.order) == (2, None)
    assert "expected a number of requests a second, at least 0.001" in err


def test_interrupt_stops_watching_and_says_that_the_job_goes_on(admin, file):
    admin.states = [JOB | STATES[0]]
    script = (
        "import argparse, sys\nfrom gateway.commands import warm\np = argparse.ArgumentParser()\n"
        "warm.add_arguments(p)\nsys.exit(warm.run(p.parse_args(sys.argv[1:])))"
    )
    environ = {name: value for name, value in os.environ.items() if name != "GATEWAY_ADMIN_TOKEN"}
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(file), "--url", admin.url, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    try:
        until = time.monotonic() + 60
        while admin.looks == 0:  # before, it may still import, where an interrupt is not its own
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert json.loads(out)["state"] == "running"
    assert err.splitlines()[-1] == f"Not watched any more; the job goes on: GET {admin.url}/admin/api/warm/j1"
