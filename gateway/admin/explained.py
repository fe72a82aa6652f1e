"""Explanations at the admin port: passes questions to the explain worker, and its JSON answers back."""

from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.responses import Response

from gateway.admin.query import read_filters
from gateway.admin.token_diff import Decoders, tokens_shown
from gateway.core.api_keys import redacted
from gateway.core.errors import GatewayError
from gateway.core.ports import ExplainDesk
from gateway.core.prompt import TokenSource

_WHOSE = ("model", "tenant", "source", "template")
_SUMMARY = ("window", *_WHOSE, "gateways")
_REASONS = ("window", *_WHOSE, "reason", "by")
_REQUESTS = (*_WHOSE, "reason", "session", "limit")


def show_explained(app: FastAPI, desk: ExplainDesk, decoders: Decoders) -> None:
    """Add the paths."""

    @app.get("/admin/api/summary")
    async def summary(request: Request) -> Response:
        return _json(await desk.ask("summary", read_filters(request, _SUMMARY)))

    @app.get("/admin/api/reasons")
    async def reasons(request: Request) -> Response:
        return _json(await desk.ask("reasons", read_filters(request, _REASONS)))

    @app.get("/admin/api/requests")
    async def requests(request: Request) -> Response:
        return _json(await desk.ask("requests", read_filters(request, _REQUESTS)))

    # An id is any text that clients send as x-request-id, also with slashes.
    @app.get("/admin/api/requests/{id:path}")
    async def one_request(request: Request) -> Response:
        read_filters(request, ())
        which = {"id": redacted(request.path_params["id"])}
        found = orjson.loads(await desk.ask("request", which))
        if found.get("difference") is not None:
            found["difference"]["tokens"] = await _tokens(desk, decoders, which, found)
        return _json(orjson.dumps(found, option=orjson.OPT_INDENT_2))


async def _tokens(
    desk: ExplainDesk, decoders: Decoders, which: Mapping[str, str], found: Mapping[str, Any]
) -> Mapping[str, object] | None:
    """The difference token by token; None if it is unknown."""
    decode = decoders(found["model"], found["space"]["tokenizer"])
    if decode is None or found["tokens"]["source"] == TokenSource.TEXT:
        return None
    try:
        window = orjson.loads(await desk.ask("tokens", which))
    except GatewayError:
        return None  # the rest is shown without it
    return None if window is None else tokens_shown(window, decode)


def _json(document: bytes) -> Response:
    return Response(document, media_type="application/json")
