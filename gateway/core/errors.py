"""The gateway's own errors: one exception type per kind of HTTP error.

``api/error_responses.py`` turns them into the OpenAI error body.
"""

import math
from collections.abc import Sequence

from gateway.core.tenant import Caller

_LONGEST_RETRY_AFTER = 3600
"""Upper bound of ``retry-after`` in seconds: no estimate reaches further."""


class GatewayError(Exception):
    """An error that the gateway sends as the answer to a request.

    Attributes:
        message: One sentence for the person who reads the client's log: what is wrong and how to fix it.
        param: The request field at fault, in the API's dotted form (``messages[0].role``), or None.
        code: Machine-readable code, stable across versions.
        status: HTTP status.
        type: The error body's ``type``.
        retry_after_seconds: Sent as ``retry-after`` where waiting helps.
        headers: Further headers of the answer, names in lower case.
        caller: The caller of the refused request, if known; set where it is refused.
    """

    status = 500
    type = "internal_error"
    retry_after_seconds: int | None = None
    caller: Caller | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def is_final(self) -> bool:
        """Whether the request itself is the reason, so that it is refused again when it is sent again."""
        return self.status < 500 and self.retry_after_seconds is None


class BadRequest(GatewayError):
    """The request cannot be understood."""

    status = 400
    type = "invalid_request_error"


class Unauthorized(GatewayError):
    """Not authenticated: no key, or an invalid one."""

    status = 401
    type = "invalid_request_error"


class Forbidden(GatewayError):
    """Authenticated, but not allowed."""

    status = 403
    type = "permission_error"


class NotFound(GatewayError):
    """Unknown path or unknown model."""

    status = 404
    type = "invalid_request_error"


class MethodNotAllowed(GatewayError):
    """Known path, wrong method."""

    status = 405
    type = "invalid_request_error"


class PayloadTooLarge(GatewayError):
    """The body is larger than ``server.max_body_bytes``."""

    status = 413
    type = "invalid_request_error"


class UnsupportedMediaType(GatewayError):
    """The body is not declared as JSON."""

    status = 415
    type = "invalid_request_error"


class HeadersTooLarge(GatewayError):
    """The headers are larger than ``server.max_header_bytes``."""

    status = 431
    type = "invalid_request_error"


class NotSupported(GatewayError):
    """The request uses a part of HTTP that is not implemented."""

    status = 501
    type = "invalid_request_error"


class RateLimited(GatewayError):
    """A limit of the tenant is reached.

    Args:
        retry_after_seconds: Seconds until it would pass; None if it never will.
        kind: ``requests`` or ``tokens``: the error's ``type``, as OpenAI has it.
    """

    status = 429

    def __init__(
        self,
        message: str,
        *,
        kind: str,
        code: str,
        retry_after_seconds: float | None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message, code=code, headers=headers)
        self.type = kind
        if retry_after_seconds is not None:
            self.retry_after_seconds = max(math.ceil(retry_after_seconds), 1)


class Overloaded(GatewayError):
    """No replica of the model has time for the request, or no thread for its long text, and it cannot wait longer.

    Args:
        retry_after_seconds: Seconds until it should pass.
    """

    status = 429
    type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message, code="overloaded")
        self.retry_after_seconds = min(max(math.ceil(retry_after_seconds), 1), _LONGEST_RETRY_AFTER)


class NoReplica(GatewayError):
    """No replica of the model can take a request now."""

    status = 503
    type = "service_unavailable"
    retry_after_seconds = 2


class DetectorUnavailable(GatewayError):
    """The operator's detector of personal data gave no answer, and a request that was not searched is not sent."""

    status = 503
    type = "service_unavailable"
    retry_after_seconds = 2


class UpstreamFailed(GatewayError):
    """The chosen replica broke the connection or answered something that is not HTTP."""

    status = 502
    type = "upstream_error"


class EngineProblem(GatewayError):
    """An error as an engine reports it.

    Args:
        status: Its HTTP status.
        kind: Its ``type``.
    """

    def __init__(
        self, status: int, message: str, *, kind: str = "", param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status, self.type = status, kind


class UpstreamTimeout(GatewayError):
    """The chosen replica stayed silent longer than the configured limit."""

    status = 504
    type = "upstream_error"


class DeadlineExceeded(GatewayError):
    """The time that the client or the configuration gives a request was over before it was answered."""

    status = 504
    type = "timeout_error"


class ShuttingDown(GatewayError):
    """The gateway is shutting down and could not wait for the answer any longer."""

    status = 503
    type = "service_unavailable"
    retry_after_seconds = 1


class ClientGone(Exception):
    """The client closed its connection."""


class TokenizerUnavailable(Exception):
    """A tokenizer cannot be loaded, or cannot encode this prompt. Requests still flow: see ``encode``."""


class ConfigInvalid(Exception):
    """The configuration is invalid. ``problems`` holds one formatted line per mistake."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
