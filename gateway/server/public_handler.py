"""Begins the exchanges of the public port: generation requests by callbacks, all others through ASGI."""

import asyncio
from collections.abc import Collection

from gateway.api.dialects import Dialect
from gateway.api.generation import GenerationExchange
from gateway.api.public import PublicApp
from gateway.core.exchange import Exchange, Receiver
from gateway.core.request import Endpoint
from gateway.server.asgi_adapter import AsgiHandler
from gateway.tasks import Continuation


class PublicHandler:
    """Answers the exchanges of the public port: generation requests without ASGI.

    Args:
        app: What the port answers.
    """

    def __init__(self, app: PublicApp) -> None:
        self._generations = app.generations
        self._root_path = app.root_path
        called: dict[str, tuple[Endpoint, Dialect | None]] = {str(endpoint): (endpoint, None) for endpoint in Endpoint}
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
        if called is None or exchange.method != "POST":
            return self._asgi(exchange)
        return GenerationExchange(self._generations, exchange, *called)
