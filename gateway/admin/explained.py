"""Explanations at the admin port: passes questions to the explain worker, and its JSON answers back.

Where two prompts differ is shown token by token. The journal keeps ids around the first difference. Here the models'
tokenizers decode each id, and its text is masked. The result holds neither text nor ids, which a public tokenizer would
decode.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.guard import read_filters
from gateway.core.api_keys import redacted
from gateway.core.errors import GatewayError
from gateway.core.prompt import TokenSource
from gateway.explain.masked_text import masked
from gateway.explain.worker.explain_client import ExplainClient

if TYPE_CHECKING:
    from fastapi import FastAPI

Decode = Callable[[list[int]], str]
"""Decodes token ids to text."""

Decoders = Callable[[str, str], Decode | None]
"""The decoder for a model id and a tokenizer id; None if it is not loaded in this process."""

_WHOSE = ("model", "tenant", "source", "template", "prompt")
_SUMMARY = ("window", *_WHOSE, "gateways")
_REASONS = ("window", *_WHOSE, "reason", "by")
_REQUESTS = (*_WHOSE, "reason", "session", "limit")


def show_explained(app: "FastAPI", desk: ExplainClient, decoders: Decoders) -> None:
    """Add the paths."""

    @app.get("/admin/api/summary")
    async def summary(request: Request) -> Response:
        return _json(await desk.ask("summary", read_filters(request, _SUMMARY)))

    @app.get("/admin/api/reasons")
    async def reasons(request: Request) -> Response:
        return _json(await desk.ask("reasons", read_filters(request, _REASONS)))

    @app.get("/admin/api/report")
    async def month_report(request: Request) -> Response:
        return _json(await desk.ask("report", read_filters(request, ("month", "tenant", "prompt", "gateways"))))

    @app.get("/admin/api/experiment")
    async def experiment(request: Request) -> Response:
        return _json(await desk.ask("experiment", read_filters(request, ("model",))))

    @app.get("/admin/api/requests")
    async def requests(request: Request) -> Response:
        return _json(await desk.ask("requests", read_filters(request, _REQUESTS)))

    @app.get("/admin/api/sessions")
    async def sessions(request: Request) -> Response:
        return _json(await desk.ask("sessions", read_filters(request, ("tenant", "limit"))))

    # An id is any text that clients send, also with slashes.
    @app.get("/admin/api/sessions/{id:path}")
    async def one_session(request: Request) -> Response:
        return _json(await desk.ask("session", session_of(request)))

    @app.get("/admin/api/requests/{id:path}")
    async def one_request(request: Request) -> Response:
        read_filters(request, ())
        which = {"id": redacted(request.path_params["id"])}
        found = orjson.loads(await desk.ask("request", which))
        if found.get("difference") is not None:
            found["difference"]["tokens"] = await _tokens(desk, decoders, which, found)
        return _json(orjson.dumps(found, option=orjson.OPT_INDENT_2))


def session_of(request: Request) -> dict[str, str]:
    """The session that a path names, and its tenant if it is selected."""
    return read_filters(request, ("tenant",)) | {"id": redacted(request.path_params["id"])}


async def _tokens(
    desk: ExplainClient, decoders: Decoders, which: Mapping[str, str], found: Mapping[str, Any]
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


_NO_TEXT = "·"
"""Shown for a token without text: part of a character, a special token, an image."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_SHORTEST_RETURN = 3
"""Equal tokens in a row from which on the prompts count as equal again."""


def tokens_shown(window: Mapping[str, Any], decode: Decode) -> dict[str, list[dict[str, str]]]:
    """``difference.tokens`` of ``GET /admin/api/requests/{id}``.

    Args:
        window: The journal's answer to the question ``tokens``: ids ``before`` and ``after``, equal up to ``first``.
        decode: The model's tokenizer.
    """
    before, after, first = window["before"], window["after"], window["first"]
    back_before, back_after = _same_again(before, after, first)
    return {
        "before": _side(before, first, back_before, decode),
        "after": _side(after, first, back_after, decode),
    }


def _side(ids: Sequence[int], first: int, back: int, decode: Decode) -> list[dict[str, str]]:
    def state(position: int) -> str:
        if position == first:
            return "first"
        return "differs" if first < position < back else "same"

    return [
        {"text": _text(ids[position - 1 : position], token, decode), "state": state(position)}
        for position, token in enumerate(ids)
    ]


def _text(previous: Sequence[int], token: int, decode: Decode) -> str:
    """A token's own text, masked. Behind the token in front of it: alone, some tokenizers drop its leading blank."""
    try:
        leading = decode(list(previous)) if previous else ""
        together = decode([*previous, token])
    except Exception:  # noqa: BLE001 - ids outside of the vocabulary; libraries raise different errors
        return _NO_TEXT
    text = together[len(leading) :] if together.startswith(leading) else _BROKEN
    return _NO_TEXT if not text or _BROKEN in text else masked(text)


def _same_again(before: Sequence[int], after: Sequence[int], first: int) -> tuple[int, int]:
    """Where both windows become equal again up to the end of one of them; their ends if they do not."""
    ends = len(before), len(after)
    *blocks, _ = SequenceMatcher(None, before[first:], after[first:], autojunk=False).get_matching_blocks()
    if not blocks:
        return ends
    last = blocks[-1]
    begins = first + last.a, first + last.b
    reaches_end = begins[0] + last.size == ends[0] or begins[1] + last.size == ends[1]
    return begins if reaches_end and last.size >= _SHORTEST_RETURN else ends
