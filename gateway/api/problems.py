"""The gateway's own failures as HTTP answers, in the OpenAI error shape."""

from collections.abc import Mapping

import orjson
from fastapi.responses import Response

from gateway.values.errors import GatewayError

MARK = "x-gateway-error"
"""Header of answers the gateway made itself; a replica's own errors pass through without it."""


def problem_body(error: GatewayError) -> bytes:
    """The error body."""
    return orjson.dumps(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


def problem_headers(error: GatewayError, request_id: str | None) -> dict[str, str]:
    """The headers that go with it."""
    headers = {"content-type": "application/json", MARK: error.code or error.type}
    if request_id is not None:
        headers["x-request-id"] = request_id
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    return headers | dict(error.headers)


def problem_response(
    error: GatewayError, request_id: str | None = None, extra: Mapping[str, str] | None = None
) -> Response:
    """The whole answer, for the routes FastAPI serves."""
    headers = problem_headers(error, request_id) | dict(extra or {})
    return Response(problem_body(error), error.status, headers)
