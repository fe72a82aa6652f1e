"""``prefix-gateway serve`` with several workers, as processes: one port, one answer to every question."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import fork_server
import httpx
import pytest
import yaml
from fork_server import children
from patience import HANG_SECONDS
from raw_http import Connection, post
from running_gateway import CHAT, Metrics, eventually
from serving import COMMAND, Serving

from gateway.core.api_keys import hash_key
from gateway.simulator.simulated_engine import SimulatedEngine

BODY = b'{"model":"demo","max_tokens":%d,"ignore_eos":true,"stream":%s,"messages":[{"role":"user","content":"Hi"}]}'
READY_SECONDS = 60.0
WORKER = "gateway.server.workers.worker_main"
EXPLAIN_WORKER = "gateway.explain.worker.process"


class Several:
    """A gateway with two workers, and what a test asks it."""

    def __init__(self, serving: Serving, closing: contextlib.AsyncExitStack) -> None:
        self.serving = serving
        self._closing = closing
        self.admin = httpx.AsyncClient(base_url=serving.admin_url, verify=False, timeout=60)

    async def ask(self, count: int) -> list[httpx.Response]:
        """So many requests, each on a connection of its own."""

        async def one() -> httpx.Response:
            async with httpx.AsyncClient(base_url=self.serving.url, verify=False, timeout=60) as client:
                headers = {"content-type": "application/json"}
                return await client.post(CHAT, content=BODY % (1, b"false"), headers=headers)

        answers = []
        for _ in range(0, count, 10):
            answers += await asyncio.gather(*(one() for _ in range(10)))
        return answers

    async def streams(self, count: int) -> list[Connection]:
        """So many streams that have begun, each on a connection of its own."""
        opened = []
        for _ in range(count):
            stream = await Connection.open(httpx.URL(self.serving.url).port)
            self._closing.callback(stream.abort)
            await stream.send(post(CHAT, BODY % (60, b"true")))
            opened.append(stream)
        for stream in opened:
            await stream.reader.readuntil(b"data: ")
        return opened

    async def metrics(self) -> Metrics:
        return Metrics((await self.admin.get("/metrics")).text)

    async def counted(self, requests: int) -> None:
        """Wait until so many requests are counted, and fail if there are ever more."""

        async def all_there() -> bool:
            found = (await self.metrics()).value("gateway_requests_total")
            assert found <= requests
            return found == requests

        await eventually(all_there)

    async def shown(self, path: str):
        answer = await self.admin.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def order(self, path: str, **order):
        answer = await self.admin.post(path, json=order)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def settled(self) -> Counter[int]:
        """Answers, by the worker that gave them."""
        return Counter(event["worker"] for event in self.serving.events("request_settled"))

    def workers(self) -> list[int]:
        """Process ids, of those that run at present."""
        return children(self.serving.process.pid, WORKER)

    async def kill_one(self) -> int:
        """Kill a worker and wait until another one serves in its place; returns its number."""
        before = len(self.serving.events("worker_ready"))
        os.kill(self.workers()[0], signal.SIGKILL)
        await eventually(lambda: len(self.serving.events("worker_ready")) > before, READY_SECONDS)
        return int(self.serving.events("worker_lost")[-1]["number"])


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def folder(monkeypatch):
    """Where temporary files go."""
    # Not pytest's, whose names are too long for sockets. A worker that is ending may still write into it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
async def several(serve, closing, folder):
    """Starts it; keyword arguments are sections of the configuration."""

    async def start(*urls: str, **sections) -> Several:
        server = {"workers": 2} | sections.pop("server", {})
        running = Several(await serve(*urls, server=server, **sections), closing)
        closing.push_async_callback(running.admin.aclose)
        return running

    return start


async def test_they_are_one_gateway(several, start_engine):
    engines = [await start_engine() for _ in range(2)]
    running = await several(*(engine.url for engine in engines))
    assert len(running.workers()) == 2
    answers = await running.ask(100)
    assert {answer.status_code for answer in answers} == {200}
    await running.counted(100)
    assert sum(running.settled().values()) == 100
    assert sorted(running.settled()) == [0, 1]
    metrics = await running.metrics()
    assert metrics.value("gateway_request_seconds_count") == 100
    assert metrics.value("gateway_request_seconds_bucket", le="+Inf") == 100
    assert metrics.value("gateway_replica_up") == 2
    assert metrics.value("gateway_replica_inflight") == 0

    # Explained by one process for both.
    async def explained() -> bool:
        return bool((await running.shown("/admin/api/summary"))["requests"] == 100)

    await eventually(explained)
    rows = (await running.shown("/admin/api/requests?limit=200"))["requests"]
    assert {row["id"] for row in rows} == {answer.headers["x-request-id"] for answer in answers}
    one = await running.shown(f"/admin/api/requests/{rows[0]['id']}")
    assert one["id"] == rows[0]["id"]
    # The space they have in common, and its figures.
    (space,) = (await running.shown("/admin/api/spaces"))["spaces"]
    assert space["requests"] == 100
    # Exemplars survive.
    page = await running.admin.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    assert "# {request_id=" in page.text
    for path in ("/healthz", "/dashboard", "/admin/api/config", "/admin/api/prefixes", "/admin/api/warm"):
        assert (await running.admin.get(path)).status_code == 200, path
    assert (await running.admin.get("/admin/api/nothing")).json()["error"]["code"] == "unknown_path"
    assert (await running.admin.get("/admin/api/warm/nothing")).json()["error"]["code"] == "unknown_job"


@pytest.mark.slow
async def test_head_and_cross_origin_requests(several, start_engine):
    """HEAD has the headers of the merged answer; every worker, and its HTTP layer, has the origins."""
    origin = "https://app.example.com"
    running = await several((await start_engine()).url, server={"cors_origins": [origin]})
    for path in ("/dashboard", "/admin/api/me", "/admin/api/replicas", "/admin/api/spaces", "/admin/api/config"):
        get, head = await running.admin.get(path), await running.admin.head(path)
        assert (path, get.status_code, head.status_code, head.content) == (path, 200, 200, b"")
        assert head.headers["content-type"] == get.headers["content-type"]
        assert int(head.headers["content-length"]) > 0
    assert (await running.admin.head("/metrics")).headers["content-type"].startswith("text/plain")
    assert (await running.admin.head("/admin/api/live")).status_code == 200
    async with httpx.AsyncClient(base_url=running.serving.url, verify=False, timeout=60) as client:
        assert (await client.head("/health")).status_code == 200
        for headers, status in (({}, 200), ({"x-long": "y" * 70_000}, 431)):
            answer = await client.get("/v1/models", headers={"origin": origin} | headers)
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, origin)


async def test_what_happens_in_any_worker_is_sent_live(several, start_engine):
    running = await several((await start_engine()).url)
    reported: list[str] = []
    async with running.admin.stream("GET", "/admin/api/live") as live:
        lines = live.aiter_lines()
        assert await anext(lines) == "event: replicas"
        await running.ask(20)
        assert sorted(running.settled()) == [0, 1]
        async with asyncio.timeout(HANG_SECONDS):
            async for line in lines:
                if line.startswith("data: ") and "requests" in (reported_of := json.loads(line[6:])):
                    reported += [row["id"] for row in reported_of["requests"]]
                    if len(reported) + reported_of["left_out"] >= 20:
                        break
    # There are no listeners any more, and the worker has noticed.
    running.serving.process.terminate()
    assert await running.serving.exit_code() == 0


async def test_a_worker_that_is_killed_is_replaced_and_the_others_go_on(several, start_engine):
    engine = await start_engine(decode_ms=100)
    running = await several(engine.url)
    await running.ask(20)
    await running.counted(20)
    streams = await running.streams(24)
    lost = await running.kill_one()
    ended = [await stream.reader.read() if stream.reader.at_eof() else await _rest(stream) for stream in streams]
    whole = [rest for rest in ended if rest.endswith(b"data: [DONE]\n\n\r\n")]
    # The answers that end are those of the one that was killed, and no others.
    assert 0 < len(whole) < 24

    def complete() -> list[dict[str, Any]]:
        return [event for event in running.serving.events("request_settled") if event["ending"] == "complete"]

    await eventually(lambda: len(complete()) >= 20 + len(whole))  # the line is written behind the answer
    assert Counter(event["worker"] for event in complete()[20:]) == {1 - lost: len(whole)}
    # What it had counted stays counted, once.
    await running.counted(20 + len(whole))
    assert (await running.metrics()).value("gateway_worker_restarts_total") == 1
    assert {answer.status_code for answer in await running.ask(60)} == {200}
    await running.counted(80 + len(whole))
    after = Counter(event["worker"] for event in running.serving.events("request_settled")[20 + len(whole) :])
    assert sorted(after) == [0, 1]
    assert (await running.metrics()).value("gateway_replica_inflight") == 0


async def _rest(stream: Connection) -> bytes:
    """What still comes: to the end of the answer, or of the connection."""
    reported = b""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while not reported.endswith(b"data: [DONE]\n\n\r\n"):
            reported += await stream.reader.readuntil(b"\r\n")
    return reported


def asked(engine: SimulatedEngine) -> list[Any]:
    """The chat requests that an engine got; starting workers ask for other things."""
    return [each for each in engine.requests if each.path == CHAT]


async def test_orders_hold_for_all_and_for_those_that_come_later(several, start_engine):
    engines = [await start_engine() for _ in range(2)]
    urls = [engine.url.removeprefix("http://") for engine in engines]
    running = await several(*(engine.url for engine in engines), spaces={"isolation": "none"})
    await running.ask(20)
    assert (await running.metrics()).value("gateway_worker_restarts_total") == 0
    reset = await running.order("/admin/api/spaces/reset", all=True)
    assert reset["reset"] == len(reset["spaces"]) == 1
    drained = await running.order("/admin/api/replicas/drain", replica=urls[0], drain=True)
    assert drained["draining"]
    for replaced in (False, True):
        if replaced:
            await running.kill_one()
        before = [len(asked(engine)) for engine in engines]
        await running.ask(40)
        new = [asked(engine)[count:] for engine, count in zip(engines, before, strict=True)]
        assert [len(requests) for requests in new] == [0, 40]
        # Made unreachable: what was cached before the reset has no salt.
        assert all("cache_salt" in json.loads(request.body) for request in new[1])
    assert sorted(running.settled()) == [0, 1]
    states = {row["id"]: row["state"] for row in (await running.shown("/admin/api/replicas"))["replicas"]}
    assert states[urls[0]] == "draining"
    # And the same back.
    reported = await running.order("/admin/api/replicas/drain", replica=urls[0], drain=False)
    assert (reported["draining"], reported["everywhere"]) == (False, False)
    await running.kill_one()
    before = len(asked(engines[0]))
    await running.order("/admin/api/replicas/drain", replica=urls[1], drain=True)
    await running.ask(20)
    assert len(asked(engines[0])) == before + 20
    refused = await running.admin.post("/admin/api/replicas/drain", json={"replica": "nobody", "drain": True})
    assert refused.json()["error"]["code"] == "unknown_replica"


async def test_an_added_replica_is_one_of_all_and_of_those_that_come_later(several, start_engine):
    engines = [await start_engine() for _ in range(2)]
    running = await several(engines[0].url)
    await running.order("/admin/api/replicas", model="demo", url=engines[1].url, id="added")
    await running.order("/admin/api/replicas/drain", replica=engines[0].url.removeprefix("http://"), drain=True)

    async def is_up():
        shown = (await running.shown("/admin/api/replicas"))["replicas"]
        return any(row["id"] == "added" and row["up"] for row in shown)

    for _ in range(2):
        await eventually(is_up)
        before = [len(asked(engine)) for engine in engines]
        await running.ask(20)
        assert [len(asked(engine)) for engine in engines] == [before[0], before[1] + 20]
        await running.kill_one()
    removed = await running.admin.delete("/admin/api/replicas/added")
    assert (removed.status_code, removed.json()) == (200, {"replica": "added"})


async def test_a_changed_configuration_reaches_all_of_them(several, start_engine):
    running = await several((await start_engine()).url)
    file = running.serving.config
    first = file.read_text()

    def of_both(name: str) -> bool:
        return {event.get("worker") for event in running.serving.events(name)} >= {0, 1}

    settings = yaml.safe_load(first)
    settings["explain"] = {"currency": "EUR"}
    file.write_text(yaml.safe_dump(settings))
    running.serving.process.send_signal(signal.SIGHUP)
    await eventually(lambda: of_both("reloaded"))
    assert (await running.shown("/admin/api/summary"))["price"]["currency"] == "EUR"
    file.write_text("models: nonsense")
    running.serving.process.send_signal(signal.SIGHUP)
    await eventually(lambda: of_both("reload_refused"))
    refused = (await running.metrics()).value("gateway_config_reloads_total", result="refused")
    assert refused >= 2
    # Later workers use what is in force, not by what stands there.
    await running.kill_one()
    assert {answer.status_code for answer in await running.ask(20)} == {200}
    assert (await running.metrics()).value("gateway_config_reloads_total", result="refused") == refused
    assert (await running.shown("/admin/api/summary"))["price"]["currency"] == "EUR"


async def test_no_open_stream_is_lost_at_the_end_and_nothing_stays_behind(several, start_engine, folder):
    engine = await start_engine(decode_ms=50)
    running = await several(engine.url)
    streams = await running.streams(16)
    pids = running.workers() + children(running.serving.process.pid, EXPLAIN_WORKER)
    assert len(pids) == 3
    running.serving.process.terminate()
    for stream in streams:
        rest = await _rest(stream)
        assert rest.endswith(b"data: [DONE]\n\n\r\n")
        assert b'"error"' not in rest
    assert await running.serving.exit_code() == 0
    assert sorted(running.settled()) == [0, 1]
    assert not any(map(alive, pids))
    assert not list(folder.iterdir())
    assert not [line for line in running.serving.lines if "Traceback" in line]


@pytest.mark.slow
async def test_a_worker_that_hangs_is_replaced(several, start_engine):
    running = await several((await start_engine()).url)
    hanging, other = running.workers()
    os.kill(hanging, signal.SIGSTOP)
    # A reader does not wait until it is.
    assert (await running.admin.get("/metrics")).status_code == 200
    assert alive(hanging)
    for path in ("/admin/api/replicas", "/admin/api/summary"):
        assert (await running.admin.get(path)).status_code == 200
    await eventually(lambda: len(running.serving.events("worker_ready")) == 3, 2 * READY_SECONDS)
    assert other in running.workers()
    assert not alive(hanging)
    assert {answer.status_code for answer in await running.ask(20)} == {200}


async def test_a_caller_is_named_and_recorded_once(several, start_engine, tmp_path):
    audit = tmp_path / "audit.jsonl"
    tokens = [{"id": name, "hash": hash_key(f"pgw_{name}"), "role": role} for name, role in _ROLES.items()]
    running = await several((await start_engine()).url, server={"admin_tokens": tokens}, audit={"file": str(audit)})

    async def status(token: str, method: str, path: str, **order) -> int:
        headers = {"authorization": f"Bearer pgw_{token}"}
        return (await running.admin.request(method, path, headers=headers, json=order or None)).status_code

    assert await status("nobody", "GET", "/metrics") == 401
    assert await status("looks", "GET", "/metrics") == 200
    assert await status("looks", "GET", "/admin/api/replicas") == 200
    assert await status("looks", "POST", "/admin/api/spaces/reset", all=True) == 403
    assert await status("operates", "POST", "/admin/api/spaces/reset", all=True) == 200
    assert await status("operates", "POST", "/admin/api/spaces/reset", everything=True) == 400
    running.serving.process.terminate()
    assert await running.serving.exit_code() == 0
    files = [audit, tmp_path / "audit.jsonl.worker-1"]
    first, second = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    refused = [event for event in first + second if event["event"] == "admin_refused"]
    assert sorted((event["status"], event["by"], event["peer"]) for event in refused) == [
        (401, "", "127.0.0.1"),
        (403, "looks", "127.0.0.1"),
    ]
    for events in (first, second):
        assert [event["by"] for event in events if event["event"] == "spaces_reset_asked"] == ["operates"]


_ROLES = {"looks": "read", "operates": "operate"}


async def test_they_end_with_their_supervisor(several, start_engine):
    running = await several((await start_engine()).url)
    pids = running.workers() + children(running.serving.process.pid, EXPLAIN_WORKER)
    running.serving.process.kill()
    await eventually(lambda: not any(map(alive, pids)))


async def test_explanations_go_on_when_their_process_was_lost(several, start_engine):
    running = await several((await start_engine()).url)
    await running.ask(20)
    (explaining,) = children(running.serving.process.pid, EXPLAIN_WORKER)
    os.kill(explaining, signal.SIGKILL)
    await running.ask(20)

    async def reported() -> bool:
        await running.ask(10)
        answer = await running.admin.get("/admin/api/requests?limit=500")
        return answer.status_code == 200 and len(answer.json()["requests"]) >= 10

    await eventually(reported)
    (again,) = children(running.serving.process.pid, EXPLAIN_WORKER)
    assert again != explaining


def run(config: Path) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "serve", "--workers", "2", "--config", str(config)]
    return fork_server.run(command)


def test_temporary_files_need_a_folder(config, monkeypatch, tmp_path):
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    ended = run(config())
    assert ended.returncode == 2
    assert "TMPDIR" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_configuration_that_no_worker_can_use_is_reported_once(config):
    ended = run(config(warm={"file": "/no/such/prefixes.yaml"}))
    assert ended.returncode == 2
    assert ended.stderr.count("warm.file: no such file") == 1
    assert "Traceback" not in ended.stderr


async def test_the_port_of_another_gateway_is_not_shared(several, start_engine, config):
    running = await several((await start_engine()).url)
    for key in ("port", "admin_port"):
        url = running.serving.url if key == "port" else running.serving.admin_url
        ended = await asyncio.to_thread(run, config(server={key: httpx.URL(url).port}))
        assert ended.returncode == 2
        assert f"server.{key}: cannot listen on" in ended.stderr


@pytest.mark.parametrize("count", ["0", "65", "two"])
def test_a_number_of_workers_that_cannot_be(config, count):
    command = [*COMMAND, "serve", "--workers", count, "--config", str(config())]
    ended = fork_server.run(command)
    assert ended.returncode == 2
    assert "from 1 to 64" in ended.stderr
