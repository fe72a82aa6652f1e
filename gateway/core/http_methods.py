"""The public port's routes, on plain Starlette, and which methods a 405 of either port names.

Without FastAPI, whose import takes a quarter of a second: clients would wait for it at the start.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

RouteHandler = Callable[[Request], Awaitable[Response]]


class HttpRoutes(Starlette):
    """An ASGI application whose routes are added by decorators. HEAD is served wherever GET is.

    The HTTP layer leaves the body of an answer to HEAD out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.router.redirect_slashes = False

    def get(self, path: str) -> Callable[[RouteHandler], RouteHandler]:
        """Serve GET and HEAD at a path; ``{name}`` and ``{name:path}`` are found in ``request.path_params``."""
        return self._serve(path, "GET")

    def on_error(self, kind: type[Exception]) -> Callable[[Any], Any]:
        """Answer errors of a kind with an ``async`` function of request and error."""

        def added(handler: Any) -> Any:
            self.add_exception_handler(kind, handler)
            return handler

        return added

    def _serve(self, path: str, method: str) -> Callable[[RouteHandler], RouteHandler]:
        def added(endpoint: RouteHandler) -> RouteHandler:
            self.add_route(path, endpoint, methods=[method])
            return endpoint

        return added


def allowed_methods(error: HTTPException) -> str:
    """The ``allow`` header of a 405, always in the same order."""
    return ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
