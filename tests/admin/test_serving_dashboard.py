"""``prefix-gateway serve`` with the dashboard: what it prints at its start, what is sent live, and how it ends."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import fork_server
import httpx
import pytest
import yaml
from admin_port import problem

from gateway.simulator.config import EngineConfig
from gateway.simulator.simulated_engine import SimulatedEngine

GRACE_SECONDS = 600
"""Much longer than these tests wait."""

BEFORE = "You are the support agent of Anna Smith. Today is 2026-11-20. " + "Be brief and polite. " * 40
AFTER = BEFORE.replace("11-20", "11-21")


class Serving:
    """The command, and what it logs."""

    def __init__(self, folder, engine):
        config = {
            "server": {"port": 0, "admin_port": 0, "drain_seconds": 0, "shutdown_grace_seconds": GRACE_SECONDS},
            "models": [{"id": "demo", "tokenizer": "builtin:demo", "replicas": [{"url": engine, "id": "r0"}]}],
            "relay": {"health_interval_seconds": 0.1},
            "log": {"format": "json"},
        }
        file = folder / "gateway.yaml"
        file.write_text(yaml.safe_dump(config))
        self.log = folder / "log"
        with self.log.open("w") as log:
            command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
            self.process = fork_server.launch(command, stderr=log, stdout=subprocess.DEVNULL)

    def ready(self):
        until = time.monotonic() + 90
        while time.monotonic() < until and self.process.poll() is None:
            for line in self.log.read_text().splitlines():
                if line.endswith("}") and (event := json.loads(line))["event"] == "gateway_ready":
                    return event
            time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    def ended(self):
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait(90)


@pytest.fixture(scope="module")
def engine():
    """A simulated engine, in a thread of its own."""
    url, stop = [], threading.Event()

    async def run():
        simulated = SimulatedEngine(EngineConfig(prefill_rate=1e6, decode_ms=0.0))
        await simulated.start()
        url.append(simulated.url)
        await asyncio.to_thread(stop.wait)
        await simulated.kill()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    while not url:
        time.sleep(0.01)
    yield url[0]
    stop.set()
    thread.join()


@pytest.fixture
def serving(tmp_path, engine):
    serving = Serving(tmp_path, engine)
    yield serving
    with contextlib.suppress(ProcessLookupError):
        serving.process.kill()
    serving.process.wait()


def events(answer):
    """Names and data of server-sent events."""
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, json.loads(line[6:])


def chat(public, system, request_id):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Where is my order?"}]
    headers = {"x-request-id": request_id, "x-session-id": "s"}
    answer = httpx.post(f"{public}/v1/chat/completions", json={"model": "demo", "messages": messages}, headers=headers)
    assert answer.status_code == 200, answer.text


def test_requests_are_sent_live_and_shown_token_by_token_without_their_text(serving):
    ready = serving.ready()
    assert ready["dashboard"] == f"{ready['admin']}/dashboard"
    assert "<main>" in httpx.get(ready["dashboard"]).text
    with httpx.stream("GET", f"{ready['admin']}/admin/api/live?model=demo", timeout=60) as answer:
        reported = events(answer)
        assert next(reported) == ("replicas", {"replicas": [{"id": "r0", "model": "demo", "state": "ready"}]})
        chat(ready["public"], BEFORE, "one")
        name, data = next(reported)
        assert (name, data["left_out"], [row["id"] for row in data["requests"]]) == ("requests", 0, ["one"])
        chat(ready["public"], AFTER, "two")
        name, data = next(reported)
        assert [row["id"] for row in data["requests"]] == ["two"]
    api = f"{ready['admin']}/admin/api/"
    assert httpx.get(f"{api}requests").json()["requests"][0] == data["requests"][0]
    answer = httpx.get(f"{api}requests/two")
    difference = answer.json()["difference"]
    assert difference["reason"] == "dynamic_time"
    for side in ("before", "after"):
        tokens = difference["tokens"][side]
        states = [token["state"] for token in tokens]
        assert states.count("first") == 1
        assert set(states[: states.index("first")]) == {"same"}
        shown = "".join(token["text"] for token in tokens)
        assert "9999-99-99" in shown
        assert not {"Anna", "Smith", "2026", "Today"} & set(shown.replace(".", " ").split())
    assert "Smith" not in answer.text
    serving.process.kill()


def test_listeners_do_not_keep_it_from_ending(serving):
    ready = serving.ready()
    url = httpx.URL(ready["admin"])
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(httpx.stream("GET", f"{url}/admin/api/live", timeout=60))
        reported = events(listening)
        next(reported)
        silent_client = stack.enter_context(socket.create_connection((url.host, url.port)))
        silent_client.sendall(b"GET /admin/api/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        idle = stack.enter_context(httpx.Client(base_url=url))
        assert idle.get("/admin/api/me").status_code == 200
        assert serving.ended() == 0
        assert list(reported) == []  # and not cut in the middle
    assert "Traceback" not in serving.log.read_text()
    assert "without completing" not in serving.log.read_text()


def test_who_does_not_read_does_not_keep_it_from_ending_either(serving):
    ready = serving.ready()
    url = httpx.URL(ready["admin"])
    with socket.socket() as silent_client:
        silent_client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent_client.connect((url.host, url.port))
        # More answers than fit into all buffers between here and there, and none is read.
        silent_client.settimeout(0.5)
        head = b"GET /dashboard/licenses HTTP/1.1\r\nhost: 127.0.0.1\r\naccept-encoding: identity\r\n\r\n"
        with contextlib.suppress(TimeoutError):
            for _ in range(3000):
                silent_client.sendall(head)
        assert serving.ended() == 0


def test_without_a_token_it_does_not_serve_others_than_this_machine(tmp_path):
    file = tmp_path / "gateway.yaml"
    models = [{"id": "demo", "tokenizer": "builtin:demo", "replicas": ["http://127.0.0.1:9"]}]
    file.write_text(yaml.safe_dump({"server": {"port": 0, "admin_port": 0, "admin_host": "0.0.0.0"}, "models": models}))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
    run = fork_server.run(command)
    assert run.returncode == 2
    assert "admin_token" in run.stderr


def test_a_page_of_another_site_can_start_nothing(serving):
    ready = serving.ready()
    headers = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    for path in ("warm", "spaces/reset"):
        answer = httpx.post(f"{ready['admin']}/admin/api/{path}", json={"declared": True}, headers=headers)
        problem(answer, 403, "cross_site")
