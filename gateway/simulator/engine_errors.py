"""The engine's error responses, and the error of a failed start."""


class ListenError(Exception):
    """Listening at an address failed. The message names the address, the cause and the fix."""


class EngineError(Exception):
    """A request answered with an error body.

    Attributes:
        status: HTTP status.
        message: What is wrong.
        param: The invalid field, or None.
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
    """The engines' name of an HTTP status."""
    return _TYPES.get(status, "APIError")
