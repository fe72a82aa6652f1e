"""The gateway's own errors as HTTP responses, in the OpenAI error format."""

from collections.abc import Mapping

import orjson
from starlette.responses import Response

from gateway.core.errors import GatewayError

MARK = "x-gateway-error"
"""Header of errors that the gateway itself raised; a replica's errors pass through without it."""


class RequestTimeout(GatewayError):
    """A request did not arrive in time.

    Args:
        seconds: The timeout.
    """

    status = 408
    type = "timeout_error"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"The request did not arrive within {seconds:g} seconds. Send it faster, or raise server.receive_seconds.",
            code="request_timeout",
        )


class TooManyConnections(GatewayError):
    """The gateway has as many connections as it can hold."""

    status = 503
    type = "service_unavailable"
    retry_after_seconds = 1

    def __init__(self) -> None:
        super().__init__(
            "The gateway cannot hold more connections. Send the request again in a moment; who runs the gateway may"
            " raise its limit of open files.",
            code="too_many_connections",
        )


def problem_body(error: GatewayError) -> bytes:
    """The error body."""
    return orjson.dumps(
        {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
    )


def problem_headers(error: GatewayError, request_id: str | None) -> dict[str, str]:
    """The headers of an error response."""
    headers = {"content-type": "application/json", MARK: error.code or error.type}
    if request_id is not None:
        headers["x-request-id"] = request_id
    if error.retry_after_seconds is not None:
        headers["retry-after"] = str(error.retry_after_seconds)
    return headers | dict(error.headers)


def problem_response(
    error: GatewayError, request_id: str | None = None, extra: Mapping[str, str] | None = None
) -> Response:
    """The whole response, for the routes that Starlette serves."""
    headers = problem_headers(error, request_id) | dict(extra or {})
    return Response(problem_body(error), error.status, headers)
