"""The routes of both ports: plain Starlette, and which methods a 405 names.

Without FastAPI, whose import takes a quarter of a second of the start: no route uses its parameters and schemas.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

Endpoint = Callable[[Request], Awaitable[Response]]


class HttpRoutes(Starlette):
    """An ASGI application whose routes are added by decorators. HEAD is served wherever GET is.

    The HTTP layer leaves the body of an answer to HEAD out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router.redirect_slashes = False

    def get(self, path: str) -> Callable[[Endpoint], Endpoint]:
        """Serve GET and HEAD at a path; ``{name}`` and ``{name:path}`` are found in ``request.path_params``."""
        return self._serve(path, "GET")

    def post(self, path: str) -> Callable[[Endpoint], Endpoint]:
        """Serve POST at a path."""
        return self._serve(path, "POST")

    def on_error(self, kind: type[Exception]) -> Callable[[Any], Any]:
        """Answer errors of a kind with an ``async`` function of request and error."""

        def added(handler: Any) -> Any:
            self.add_exception_handler(kind, handler)
            return handler

        return added

    def _serve(self, path: str, method: str) -> Callable[[Endpoint], Endpoint]:
        def added(endpoint: Endpoint) -> Endpoint:
            self.add_route(path, endpoint, methods=[method])
            return endpoint

        return added


def allowed_methods(error: HTTPException) -> str:
    """The ``allow`` header of a 405, always in the same order."""
    return ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
