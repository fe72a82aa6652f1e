"""The admin application as the wiring sees it: what it shows, and its building after the gateway has started.

FastAPI takes about a quarter of a second of CPU time to import. The application is built in a thread once the gateway
is ready, so that clients do not wait for it; requests to the admin port that come earlier wait.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin.access import AdminAccess
from gateway.admin.explained import Decoders
from gateway.admin.guard import problem_response
from gateway.admin.live_stream import LiveFeed
from gateway.core.errors import GatewayError
from gateway.explain.worker.explain_client import ExplainClient
from gateway.fleet.drains import Drains
from gateway.fleet.membership import Membership
from gateway.spaces import SpaceKeeper
from gateway.telemetry import AuditLog
from gateway.warmup import Warmer

if TYPE_CHECKING:
    from fastapi import FastAPI

_log = structlog.get_logger("gateway.admin")

MetricsPage = Callable[[str], tuple[bytes, str]]
"""From an ``accept`` header to the metrics page and its content type."""


@dataclass(frozen=True, slots=True)
class AdminState:
    """The components behind the admin port.

    Attributes:
        metrics: Renders the metrics page.
        replicas: One object per replica.
        prefixes: The hottest prefixes of a model (empty for all), up to a number.
        config: The configuration in force, secrets masked.
        personal_data: Findings in the prompts of a space, by its id.
        named_owners: Owner names of a tenant's spaces.
        desk: Resets prefix spaces.
        fleet: Drains replicas.
        members: Adds and removes replicas.
        warm: Runs warm-up jobs.
        explain: Explains requests.
        decoders: The models' tokenizers, to show where prompts differ.
        live: Streams events.
        audit: Records orders and refused requests.
    """

    metrics: MetricsPage
    replicas: Callable[[], Sequence[Mapping[str, Any]]]
    prefixes: Callable[[str, int], Mapping[str, Any]]
    config: Callable[[], Mapping[str, Any]]
    personal_data: Callable[[str], Sequence[Mapping[str, object]]]
    named_owners: Callable[[str], Sequence[str]]
    desk: SpaceKeeper
    fleet: Drains
    members: Membership
    warm: Warmer
    explain: ExplainClient
    decoders: Decoders
    live: LiveFeed
    audit: AuditLog


class DeferredAdmin:
    """The ASGI application of the admin port.

    Args:
        state: The components.
        access: Authenticates operators.
    """

    def __init__(self, state: AdminState, access: AdminAccess) -> None:
        self._state = state
        self._access = access
        self._building: asyncio.Future[FastAPI] | None = None

    def build(self) -> "asyncio.Future[FastAPI]":
        """A future of the application. Begins to build it, unless that has begun; after a failure, once more."""
        if self._building is None:
            self._building = asyncio.ensure_future(asyncio.to_thread(self._built))
            self._building.add_done_callback(self._check)
        return self._building

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        app: ASGIApp
        try:
            app = await asyncio.shield(self.build())
        except Exception:  # noqa: BLE001 - logged by ``_check``; requests of clients are served without it
            app = problem_response(
                GatewayError(
                    "The admin application cannot be built; the log has the reason as admin_not_built. Send the request"
                    " again once it is removed.",
                    code="internal_error",
                )
            )
        await app(scope, receive, send)

    def _check(self, building: "asyncio.Future[FastAPI]") -> None:
        if building.cancelled() or (error := building.exception()) is not None:
            self._building = None
            if not building.cancelled():
                _log.error("admin_not_built", error=repr(error), again="with the next request to the admin port")

    def _built(self) -> "FastAPI":
        from gateway.admin.admin_app import build_admin

        return build_admin(self._state, self._access)
