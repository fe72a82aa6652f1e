"""HTTP methods of the routes of both ports: HEAD wherever there is GET, and which methods a 405 names."""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import Route


def serve_head(app: FastAPI) -> None:
    """Answer HEAD wherever GET is served: the same status and headers. The HTTP layer leaves the body out.

    Args:
        app: An application that has all of its routes.
    """
    for route in app.routes:
        if isinstance(route, Route) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")


def allowed_methods(error: HTTPException) -> str:
    """The ``allow`` header of a 405, always in the same order."""
    return ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
