"""The admin port's errors, in the format of the public port's."""

import orjson
from fastapi.responses import Response

from gateway.core.errors import GatewayError


def problem_response(error: GatewayError) -> Response:
    """The whole response."""
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return Response(
        orjson.dumps({"error": body}), error.status, {"content-type": "application/json", **dict(error.headers)}
    )
