"""How the engine refuses a request, and how its start can fail."""


class ListenError(Exception):
    """The address cannot be listened on. The message says which one, why, and what to do."""


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


def error_type(status: int) -> str:
    """What the engines call an HTTP status."""
    return _TYPES.get(status, "APIError")
