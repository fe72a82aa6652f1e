"""Begins the exchanges of the public port: requests to engines by callbacks, all others through ASGI."""

import asyncio
from collections.abc import Collection

from gateway.api.dialects import Dialect
from gateway.api.generation import GenerationExchange
from gateway.api.public import PublicApp
from gateway.core.exchange import Exchange, Receiver
from gateway.core.request import ENGINE_PATHS, FORM, JSON, Endpoint, EnginePath
from gateway.server.asgi_adapter import AsgiHandler
from gateway.tasks import Continuation


class PublicHandler:
    """Answers the exchanges of the public port: requests to engines without ASGI.

    Args:
        app: What the port answers.
    """

    def __init__(self, app: PublicApp) -> None:
        self._app = app
        self._generations = app.generations
        self._root_path = app.root_path
        called: dict[str, tuple[Endpoint | EnginePath, Dialect | None]]
        called = {str(endpoint): (endpoint, None) for endpoint in (*Endpoint, *ENGINE_PATHS)}
        called |= {path: (Endpoint.CHAT, dialect) for path, dialect in app.dialects.items()}
        self._called = {f"{path}{slash}": each for path, each in called.items() for slash in ("", "/")}
        self._asgi = AsgiHandler(app)

    @property
    def tasks(self) -> Collection[asyncio.Task[None] | Continuation]:
        """The requests that are under way; to be cancelled."""
        return [*self._asgi.tasks, *self._generations.waiting]

    def __call__(self, exchange: Exchange) -> Receiver:
        """Begin to answer a request whose head is complete."""
        root = self._root_path
        if root and exchange.path.startswith(f"{root}/"):  # a path that is the prefix alone may be a probe's
            exchange.path = exchange.path[len(root) :]
        called = self._called.get(exchange.path)
        if called is not None and exchange.method == "POST":
            return GenerationExchange(self._generations, exchange, *called)
        if (path := exchange.path.removesuffix("/")) in self._app.passthrough and exchange.method in ("GET", "POST"):
            passed = EnginePath(path, (JSON, FORM), needs_model=False, method=exchange.method)
            return GenerationExchange(self._generations, exchange, passed)
        return self._asgi(exchange)
