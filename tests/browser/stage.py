"""What is shown: a gateway with two simulated engines, its operators' tokens, and the traffic of applications."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from patience import HANG_SECONDS

from benchmarks.free_ports import free_port
from browser.processes import Demo, Engine, Gateway
from gateway.core.api_keys import hash_key

CHAT = "/v1/chat/completions"
READ, OPERATE = "pgw_admin_token-that-may-look", "pgw_admin_token-that-may-do"
TENANTS = ("acme", "globex")
PRICE = 2.5
ENGINE = ("--prefill-rate", "20000", "--decode-ms", "1", "--events", "tcp://*:0", "--replay", "tcp://*:0")

SYSTEM = "You answer questions about parcels, invoices and returns, in one sentence each and without guessing. " * 30
"""Some hundred tokens that every request of an application begins with."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One answered request as its client saw it; the counts are the engine's own."""

    id: str
    tenant: str
    source: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Stage:
    """A running gateway and what was sent through it."""

    gateway: Gateway
    engines: list[Engine]
    configuration: Mapping[str, Any]
    folder: Path
    sent: list[Sent] = field(default_factory=list)

    @property
    def admin(self) -> str:
        return self.gateway.admin

    def asked(self, path: str, **query: str) -> Any:
        """What the admin API answers."""
        answer = httpx.get(
            f"{self.admin}/admin/api/{path}",
            params=query,
            headers={"authorization": f"Bearer {OPERATE}"},
            trust_env=False,
            timeout=HANG_SECONDS,
        )
        answer.raise_for_status()
        return answer.json()

    def send(
        self,
        question: str,
        *,
        tenant: str = "acme",
        source: str = "web",
        system: str = SYSTEM,
        session: str | None = None,
        request_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Sent:
        """Send one request, and wait for its answer."""
        named = request_id or f"{source}-{len(self.sent) + 1}"
        body = {
            "model": "demo",
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
            "max_tokens": 4,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | fields
        given = {"authorization": f"Bearer {key(tenant)}", "x-client": source, "x-request-id": named}
        given["content-type"] = "application/json"
        if session is not None:
            given["x-session-id"] = session
        answer = httpx.post(
            self.gateway.public + CHAT,
            content=json.dumps(body, ensure_ascii=False).encode(),
            headers=[(name, value.encode()) for name, value in (given | dict(headers or {})).items()],
            trust_env=False,
            timeout=HANG_SECONDS,
        )
        assert answer.status_code == 200, answer.text
        usage = _usage(answer.text)
        self.sent.append(
            Sent(
                answer.headers["x-request-id"],
                tenant,
                source,
                usage["prompt_tokens"],
                usage["prompt_tokens_details"]["cached_tokens"],
            )
        )
        return self.sent[-1]

    def wait_until_reported(self) -> None:
        """Wait until every request that was sent stands in the summary."""
        eventually(lambda: bool(self.asked("summary")["requests"] >= len(self.sent)))

    def revive(self, number: int, *options: str) -> None:
        """Start an engine where one was killed; its cache is empty."""
        folder, port = self.folder / f"engine-{time.monotonic_ns()}", self.engines[number].port
        self.engines[number] = Engine(folder, *ENGINE, *options, port=port).ready()

    def restart_gateway(self) -> None:
        """Start another gateway on the same ports, which remembers nothing."""
        self.sent.clear()
        self.gateway = Gateway(self.folder / f"gateway-{time.monotonic_ns()}", self.configuration).ready()

    def end(self) -> None:
        for child in (self.gateway, *self.engines):
            child.end()


@contextlib.contextmanager
def staged(
    folder: Path,
    label: str = "support-v3",
    declared: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    server: Mapping[str, Any] | None = None,
) -> Iterator[Stage]:
    """A gateway in front of two engines, with tenants and tokens; nothing was sent yet.

    Args:
        folder: For everything it writes.
        label: The operator's name for the template version.
        declared: Prefixes that replicas get when they come up.
        settings: More of the configuration.
        server: More of its section ``server``.
    """
    with contextlib.ExitStack() as stack:
        engines = []
        for number in range(2):
            engines.append(Engine(folder / f"engine-{number}", *ENGINE))
            stack.callback(engines[-1].end)
        configuration = _configuration([engine.ready().url for engine in engines], label) | dict(settings or {})
        configuration["server"] = configuration["server"] | dict(server or {})
        if declared:
            file = folder / "prefixes.json"
            file.write_text(json.dumps(declared))
            warm = {"file": str(file), "requests_per_second": 50}
            configuration["warm"] = warm | configuration.get("warm", {})
        stage = Stage(Gateway(folder / "gateway", configuration), engines, configuration, folder)
        stack.callback(stage.end)
        stage.gateway.ready()
        eventually(lambda: all(replica["state"] == "ready" for replica in stage.asked("replicas")["replicas"]))
        yield stage


def wait_for_requests(demo: Demo, requests: int) -> None:
    """Wait until so many requests are reported by the demo's gateway."""
    eventually(lambda: _reported_by(demo) >= requests)


def play(stage: Stage) -> None:
    """The traffic of two applications, one request after the other.

    ``web`` sends the same beginning every time. ``mobile`` puts the time in front of it, so that nothing behind the
    time is ever found again.
    """
    for turn in range(6):
        stage.send(f"Where is parcel number {turn}?", source="web", session=f"web-{turn}")
    for minute in range(6):
        stage.send(
            f"Where is parcel number {minute}?",
            source="mobile",
            session=f"mobile-{minute}",
            system=f"Be brief.\nIt is 2026-11-21T10:{minute:02}:17Z now.\n{SYSTEM}",
        )
    for turn in range(3):
        stage.send(f"How much is invoice {turn}?", tenant="globex", source="web", system=f"For globex. {SYSTEM}")
    stage.wait_until_reported()


def key(tenant: str) -> str:
    """The API key of a tenant."""
    return f"pgw_{tenant}-key-of-this-test"


def eventually(holds: Callable[[], bool], seconds: float = HANG_SECONDS) -> None:
    """Wait until something holds that no page shows."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"did not come true within {seconds} s"
        time.sleep(0.05)


def _configuration(urls: Sequence[str], label: str) -> dict[str, Any]:
    return {
        "server": {
            "port": free_port(),
            "admin_port": free_port(),
            "drain_seconds": 0,
            "shutdown_grace_seconds": 1,
            "admin_tokens": [
                {"id": "looks", "role": "read", "hash": hash_key(READ)},
                {"id": "operates", "role": "operate", "hash": hash_key(OPERATE)},
            ],
        },
        "log": {"format": "json"},
        "models": [
            {
                "id": "demo",
                "tokenizer": "builtin:demo",
                "template_version": label,
                "replicas": [{"id": f"replica-{number}", "url": url} for number, url in enumerate(urls, start=1)],
            }
        ],
        "tenants": [{"id": name, "keys": [{"id": f"{name}-key", "hash": hash_key(key(name))}]} for name in TENANTS],
        "spaces": {"secret": "a secret of sixteen characters and more"},
        "explain": {"gpu_hour_price": PRICE, "currency": "USD", "max_cpu_share": None, "observed_share": 1},
        "relay": {"health_interval_seconds": 0.5, "health_timeout_seconds": 10, "slow_start_seconds": 0},
    }


def _usage(stream: str) -> Any:
    """The last usage of a stream of server-sent events."""
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return next(chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))


def _reported_by(demo: Demo) -> int:
    answer = httpx.get(f"{demo.admin}/admin/api/summary", trust_env=False, timeout=HANG_SECONDS)
    return int(answer.json()["requests"]) if answer.is_success else 0
