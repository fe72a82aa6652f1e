"""Routes of the admin API for replicas and hot prefixes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from gateway.admin.query import read_filters
from gateway.core.errors import BadRequest

_PREFIXES_SHOWN = 20
_MAX_PREFIXES = 100


def show_fleet(
    app: FastAPI,
    replicas: Callable[[], Sequence[Mapping[str, Any]]],
    prefixes: Callable[[str, int], Mapping[str, Any]],
) -> None:
    """Add the paths.

    Args:
        app: The application.
        replicas: One object per replica.
        prefixes: The hottest prefixes of a model (empty for all), up to a number.
    """

    @app.get("/admin/api/replicas")
    async def shown_replicas() -> Response:
        return JSONResponse({"replicas": list(replicas())})

    @app.get("/admin/api/prefixes")
    async def shown_prefixes(request: Request) -> Response:
        wanted = read_filters(request, ("model", "limit"))
        return JSONResponse(dict(prefixes(wanted.get("model", ""), _limit(wanted.get("limit", "")))))


def _limit(value: str) -> int:
    """The maximum number of prefixes to show."""
    if not value:
        return _PREFIXES_SHOWN
    if not (value.isascii() and value.isdigit() and len(value) <= 3 and 0 < int(value) <= _MAX_PREFIXES):
        raise BadRequest(f"`limit` must be a number from 1 to {_MAX_PREFIXES}.", param="limit", code="invalid_value")
    return int(value)
