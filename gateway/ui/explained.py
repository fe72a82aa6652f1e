"""Why tokens were computed again, as the admin port shows it: questions to the explanation's desk, answered in JSON."""

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.responses import Response

from gateway.keys import redacted
from gateway.values.errors import BadRequest
from gateway.values.ports import ExplainDesk

_FILTERS: Mapping[str, tuple[str, ...]] = {
    "summary": ("window", "model", "tenant", "source"),
    "reasons": ("window", "model", "tenant", "source", "reason"),
    "requests": ("model", "tenant", "source", "reason", "session", "limit"),
    "request": (),
}
_SHOWN_CHARS = 200


def show_explained(app: FastAPI, desk: ExplainDesk) -> None:
    """Add the paths."""

    @app.get("/admin/api/summary")
    async def summary(request: Request) -> Response:
        return await _answer(desk, "summary", _filters(request, "summary"))

    @app.get("/admin/api/reasons")
    async def reasons(request: Request) -> Response:
        return await _answer(desk, "reasons", _filters(request, "reasons"))

    @app.get("/admin/api/requests")
    async def requests(request: Request) -> Response:
        return await _answer(desk, "requests", _filters(request, "requests"))

    # An id is whatever clients send as x-request-id, with slashes, too.
    @app.get("/admin/api/requests/{id:path}")
    async def one_request(request: Request) -> Response:
        id_of_path = {"id": redacted(request.path_params["id"])}
        return await _answer(desk, "request", _filters(request, "request") | id_of_path)


async def _answer(desk: ExplainDesk, question: str, arguments: Mapping[str, str]) -> Response:
    return Response(await desk.ask(question, arguments), media_type="application/json")


def _filters(request: Request, question: str) -> dict[str, str]:
    """The query's parameters that are given and not empty; what looks like a key is not passed on."""
    known = _FILTERS[question]
    for given in request.query_params:
        if given not in known:
            name = redacted(given)[:_SHOWN_CHARS]
            raise BadRequest(
                f"There is no filter {name!r}; there is {', '.join(known) or 'none here'}.",
                param=name,
                code="unknown_parameter",
            )
    return {name: redacted(value) for name, value in request.query_params.items() if value}
