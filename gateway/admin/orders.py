"""Parses and checks orders of operators: bodies of POST requests."""

from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from gateway.config.replica_settings import AddedReplica
from gateway.core.api_keys import looks_like_key, redacted
from gateway.core.errors import BadRequest, ClientGone, PayloadTooLarge, UnsupportedMediaType
from gateway.core.space import SpaceSelection
from gateway.core.tenant import APPLICATION_FORM, is_application

RESET_BYTES = 1024 * 1024
"""Largest body of a reset."""
DRAIN_BYTES = 64 * 1024
"""Largest body of an order to add or to drain a replica."""
WARM_BYTES = 16 * 1024 * 1024
"""Largest body of an order to warm: it holds whole prompts."""

_SELECTORS = ("model", "tenant", "template_version", "scope", "prompt")
_MAY_BE_EMPTY = ("scope", "prompt")
_ALL = "all"
_DRAIN_KEYS = ("replica", "drain")
_SHOWN_CHARS = 60
_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}


async def read_order(request: Request, limit: int) -> dict[str, Any]:
    """The JSON object in a body.

    Args:
        request: The request.
        limit: Most bytes accepted.

    Raises:
        UnsupportedMediaType: It is not declared as JSON, which no form on a web page can do without being asked.
        PayloadTooLarge: It is larger; the rest is not read.
        BadRequest: It is not a JSON object.
        ClientGone: The client left before it was complete.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise UnsupportedMediaType(
            "The body must be sent with `content-type: application/json`.", code="unsupported_media_type"
        )
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise PayloadTooLarge(f"The body is larger than {limit} bytes.", code="request_too_large")
    except ClientDisconnect as error:
        raise ClientGone from error
    try:
        order = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not JSON: {error.msg} at byte {error.pos}.", code="invalid_json") from error
    if not isinstance(order, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_type")
    return order


def parse_drain(order: Mapping[str, Any]) -> tuple[str, bool]:
    """Parse a drain order.

    Args:
        order: The body: ``replica`` and ``drain``.

    Raises:
        BadRequest: It says something else; ``param`` is the key.
    """
    for key in order:
        if key not in _DRAIN_KEYS:
            shown = redacted(key)[:_SHOWN_CHARS]
            message = f"There is no key {shown!r}; there is {' and '.join(_DRAIN_KEYS)}."
            raise BadRequest(message, param=shown, code="unknown_parameter")
    for key, kind, wanted in (("replica", str, "the id of a replica"), ("drain", bool, "true or false")):
        if key not in order:
            raise BadRequest(f"`{key}` is missing: {wanted}.", param=key, code="missing_required_parameter")
        if type(order[key]) is not kind:
            raise BadRequest(f"`{key}` must be {wanted}.", param=key, code="invalid_type")
    if looks_like_key(order["replica"]):
        raise BadRequest("`replica` holds a key of this gateway.", param="replica", code="invalid_value")
    return order["replica"], order["drain"]


def parse_replica(order: Mapping[str, Any]) -> AddedReplica:
    """Parse an order to add a replica.

    Raises:
        BadRequest: It is not valid; ``param`` is the key.
    """
    try:
        return AddedReplica.model_validate(order)
    except ValidationError as invalid:
        problem = invalid.errors(include_url=False, include_input=False, include_context=False)[0]
        param = redacted(".".join(map(str, problem["loc"])))[:_SHOWN_CHARS]
        code = _CODES.get(problem["type"], "invalid_value")
        raise BadRequest(f"`{param}`: {problem['msg']}.", param=param, code=code) from None


def parse_selection(order: Mapping[str, Any]) -> SpaceSelection:
    """Parse the selection of a reset.

    Args:
        order: The body: some of ``model``, ``tenant``, ``template_version``, ``scope`` and ``prompt``, or
            ``{"all": true}``.

    Raises:
        BadRequest: It says nothing, or something else; ``param`` is the key.
    """
    known = ", ".join(_SELECTORS)
    for key, value in order.items():
        if key not in (*_SELECTORS, _ALL):
            shown = redacted(key)[:_SHOWN_CHARS]
            raise BadRequest(
                f"There is no key {shown!r}; there is {known}, or all.",
                param=shown,
                code="unknown_parameter",
            )
        if key == _ALL:
            if value is not True:
                raise BadRequest("`all` can only be true.", param=key, code="invalid_value")
            if len(order) > 1:
                raise BadRequest(
                    "`all` stands alone: every space, or those of a selection.", param=key, code="conflict"
                )
        elif isinstance(value, str) and looks_like_key(value):
            raise BadRequest(f"`{key}` holds a key of this gateway.", param=key, code="invalid_value")
        elif not isinstance(value, str):
            raise BadRequest(f"`{key}` must be a string.", param=key, code="invalid_type")
        elif not value and key not in _MAY_BE_EMPTY:
            raise BadRequest(f"`{key}` must not be empty: leave it out for any.", param=key, code="invalid_value")
        elif key == "prompt" and value and not is_application(value):
            message = f"`prompt` must be an application: {APPLICATION_FORM}; or empty for requests without one."
            raise BadRequest(message, param=key, code="invalid_value")
    if not order:
        raise BadRequest(
            f'Nothing is selected: give some of {known}, or {{"all": true}} for every space.', code="nothing_selected"
        )
    return SpaceSelection(**{key: value for key, value in order.items() if key != _ALL})
