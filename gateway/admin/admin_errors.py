"""The admin port's errors, in the same shape as the public port's."""

import orjson
from fastapi.responses import Response

from gateway.core.errors import GatewayError


def problem_response(error: GatewayError) -> Response:
    """The whole answer."""
    told = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return Response(
        orjson.dumps({"error": told}), error.status, {"content-type": "application/json", **dict(error.headers)}
    )
