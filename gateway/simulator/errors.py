"""How the engine refuses a request."""


class EngineError(Exception):
    """A request answered with an error body.

    Attributes:
        status: HTTP status.
        message: What is wrong.
        param: The field at fault, or None.
    """

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


_TYPES = {
    400: "BadRequestError",
    403: "ForbiddenError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    415: "UnsupportedMediaTypeError",
    429: "TooManyRequestsError",
    500: "InternalServerError",
}


def error_body(error: EngineError) -> dict[str, object]:
    """The error as vLLM words it."""
    kind = _TYPES.get(error.status, "APIError")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.status}}
