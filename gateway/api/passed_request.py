"""Reads requests to an ``EnginePath``: their model, and the JSON of those that hold prompts. Forms stay as they are."""

from collections.abc import Callable, Mapping, Sequence
from email import message_from_bytes
from email.utils import collapse_rfc2231_value
from typing import Any
from urllib.parse import parse_qs

from gateway.api.parse import known_models, parsed_object
from gateway.core.errors import BadRequest
from gateway.core.exchange import Exchange
from gateway.core.json_portions import PORTION, JsonLimits
from gateway.core.portions import Portioned
from gateway.core.request import FORM, JSON, EnginePath

_MAX_PART_BYTES = 4096


def passed_fields(
    called: EnginePath,
    exchange: Exchange,
    body: bytes,
    *,
    known: Sequence[str],
    limits: JsonLimits,
    hold: Callable[[int], None],
) -> Portioned[dict[str, Any]]:
    """The fields of a request that are read: ``model``, and all others only where they are prompts.

    Args:
        called: The endpoint.
        exchange: The request.
        body: Its body.
        known: The models that its caller may use.
        limits: See ``parse_request``.
        hold: See ``parse_request``.

    Raises:
        BadRequest: the body cannot be read, or it does not say which of several models it is for.
    """
    if exchange.method == "GET":
        asked = parse_qs(exchange.query.decode("latin-1"))
        fields: dict[str, Any] = {"model": asked["model"][-1]} if "model" in asked else {}
    elif media_type(exchange.named) == FORM:
        try:
            fields = yield from _form_model(body, exchange.named[b"content-type"])
        except (LookupError, TypeError, ValueError):  # Python's parser raises these for malformed parameters
            problem = "no boundary, over 256 parts, a head over 4096 bytes or 16 parameters, or two models"
            raise BadRequest(f"The form cannot be read ({problem}).", code="invalid_form") from None
    else:
        fields = yield from parsed_object(body, limits, hold)
    if fields.get("model") is None and not called.needs_model:
        if len(known) != 1:
            problem = f"`model` is missing: name one of {known_models(known)}."
            raise BadRequest(problem, param="model", code="missing_required_parameter")
        fields = {**fields, "model": known[0]}
    return fields if called.computes else {"model": fields.get("model")}


def media_type(named: Mapping[bytes, bytes]) -> str:
    """The media type of a body: without parameters, JSON of any kind as ``JSON``; empty without the header."""
    kind = named.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    return JSON if kind.startswith("application/") and kind.endswith("+json") else kind


def _form_model(body: bytes, content_type: bytes) -> Portioned[dict[str, Any]]:
    """The field ``model`` of a form, searched for in portions. RFC 7578."""
    boundary = message_from_bytes(b"content-type: " + content_type).get_boundary("")
    delimiter, fields = b"\r\n--" + boundary.encode("latin-1", "replace"), dict[str, Any]()
    at = 0 if body.startswith(delimiter[2:]) else (yield from _position(body, delimiter, 0)) + 2
    for _ in range(256 if boundary else 0):
        # A delimiter begins at ``at``, without its line end; at 1 there is none.
        start = at + len(delimiter) - 2
        if at == 1 or body.startswith(b"--", start):
            return fields
        head_end = body.find(b"\r\n\r\n", start, start + _MAX_PART_BYTES)
        if head_end < 0 or body.count(b";", start, head_end) > 16:  # their parser takes quadratic time
            break
        end = yield from _position(body, delimiter, head_end + 2)  # that of an empty part follows its head
        # Python's own parser of headers, as in the engines' servers: both have to see the same names.
        name = message_from_bytes(body[start + 2 : head_end]).get_param("name", "", "content-disposition")
        if collapse_rfc2231_value(name) == "model":
            value = body[head_end + 4 : end if end >= 0 else None]
            if fields or len(value) > _MAX_PART_BYTES:
                break
            fields["model"] = value.decode("utf-8", "replace")
        at = end + 2
    raise ValueError("no form")


def _position(body: bytes, wanted: bytes, start: int) -> Portioned[int]:
    """Where something begins in a body, from a position on; -1 if it is not there."""
    while (found := body.find(wanted, start, start + PORTION + len(wanted))) < 0 and start + PORTION < len(body):
        start += PORTION
        yield
    return found
