"""An admin port with components behind it that only record what they are asked."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from gateway.admin import AdminAccess, AdminState, LiveFeed
from gateway.admin.admin_app import build_admin
from gateway.config.replica_settings import AddedReplica
from gateway.core.errors import BadRequest
from gateway.core.ports import AuditEvent
from gateway.core.space import PrefixSpace, ResetCause, SpaceEnd, SpaceSelection

PLAIN, READER, OPERATOR, LATE = "plain-t0ken", "reader-t0ken", "operator-t0ken", "late-t0ken"
SECRETS = (PLAIN, READER, OPERATOR, LATE)
PEER = "203.0.113.7"

SHOWN = [
    {"id": "a", "model": "m", "tenant": "tenant:acme", "state": "alive"},
    {"id": "b", "model": "m", "tenant": "group:retail", "state": "alive"},
    {"id": "c", "model": "n", "tenant": "tenant:acme", "state": "ended"},
]


@dataclass(frozen=True)
class Token:
    id: str
    role: str
    secret: str
    expires_at: float | None = None

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.secret.encode()).digest()


TOKENS = (
    Token("grafana", "read", READER),
    Token("ops", "operate", OPERATOR, 4e9),
    Token("last-year", "operate", LATE, 1.0),
)


@dataclass
class FakeComponents:
    """Stands for all components behind the admin port."""

    events: list[AuditEvent] = field(default_factory=list)
    resets: list[tuple[SpaceSelection, str]] = field(default_factory=list)
    drains: list[tuple[str, bool]] = field(default_factory=list)
    added: list[AddedReplica] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    orders: list[tuple[Mapping[str, Any], str]] = field(default_factory=list)
    questions: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    failure: Exception | None = None

    def shown(self) -> Sequence[Mapping[str, object]]:
        return SHOWN

    async def reset(self, selection: SpaceSelection, by: str) -> Sequence[SpaceEnd]:
        if self.failure:
            raise self.failure
        self.resets.append((selection, by))
        space = PrefixSpace("m", "tok", "v3+abcd", "tenant:acme", "de", "", 4096, "", 17)
        return [SpaceEnd(space, "k3v9", ResetCause.MANUAL, by)]

    def drain(self, replica: str, *, on: bool) -> Mapping[str, object]:
        if self.failure:
            raise self.failure
        self.drains.append((replica, on))
        return {"replica": replica, "draining": on, "because": ["operator"] if on else [], "requests": 3}

    def add(self, replica: AddedReplica) -> None:
        if self.failure:
            raise self.failure
        self.added.append(replica)

    def remove(self, replica: str) -> None:
        if self.failure:
            raise self.failure
        self.removed.append(replica)

    def start(self, order: Mapping[str, object], by: str) -> Mapping[str, object]:
        if not {"prefixes", "declared"} & order.keys():
            raise BadRequest("`prefixes` is missing.", param="prefixes", code="missing")
        self.orders.append((order, by))
        return {"id": "j1", "state": "running", "total": 2}

    def job(self, job: str) -> Mapping[str, object] | None:
        return {"id": "j1", "state": "done", "total": 2} if job == "j1" else None

    async def overview(self) -> Mapping[str, object]:
        return {"declared": [{"model": "m", "tokens": 12}], "jobs": []}

    async def ask(self, question: str, arguments: Mapping[str, str]) -> bytes:
        if self.failure:
            raise self.failure
        self.questions.append((question, arguments))
        answer = self.answers.get(question, {"told": ["asked"]})
        if isinstance(answer, Exception):
            raise answer
        return orjson.dumps(answer)

    def record(self, event: AuditEvent) -> None:
        self.events.append(event)

    record_refused = record


class AdminPort:
    """The application, asked without a network."""

    def __init__(self, access: AdminAccess, journal: Any = None) -> None:
        self.access = access
        self.components = FakeComponents()
        self.config: dict[str, Any] = {"version": 1}
        self.replicas = [{"id": "r0", "model": "m", "state": "ready", "url": "http://r0"}]
        self.decode: Callable[[list[int]], str] | None = None
        desk = journal or self.components
        self.live = LiveFeed(desk, lambda: self.replicas, look_seconds=0.005)
        self.app = build_admin(
            AdminState(
                metrics=lambda _: (b"gateway_up 1\n", "text/plain"),
                replicas=lambda: self.replicas,
                prefixes=lambda model, limit: {"prefixes": [{"model": model}] * limit},
                config=lambda: self.config,
                personal_data=lambda space: [{"kind": "email"}] if space == "a" else [],
                named_owners=lambda tenant: [f"tenant:{tenant}"] + (["group:retail"] if tenant == "shop" else []),
                desk=self.components,
                fleet=self.components,
                members=self.components,
                warm=self.components,
                explain=desk,
                decoders=lambda model, tokenizer: self.decode if (model, tokenizer) == ("m", "tok") else None,
                live=self.live,
                audit=self.components,
            ),
            access,
        )

    async def ask(
        self, method: str, path: str, token: str | None = None, *, host: str = "127.0.0.1:8081", **request: Any
    ) -> httpx.Response:
        headers = [("host", host), *request.pop("headers", {}).items()]
        if token is not None:
            headers.append(("authorization", f"Bearer {token}"))
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=(PEER, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            return await client.request(method, path, headers=headers, **request)

    async def get(self, path: str, token: str | None = None, **request: Any) -> httpx.Response:
        return await self.ask("GET", path, token, **request)

    async def post(self, path: str, order: Any, token: str | None = None, **request: Any) -> httpx.Response:
        return await self.ask("POST", path, token, json=order, **request)


def problem(answer: httpx.Response, status: int, code: str, param: str | None = None) -> str:
    """The message of an error in the API's shape; fails if it is another one, or shows a token."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param)
    assert not any(secret in answer.text for secret in SECRETS)
    return error["message"]
