"""Errors of questions to the explain worker."""

from gateway.core.errors import BadRequest, GatewayError, NotFound


class ExplainUnavailable(GatewayError):
    """The explain worker is not running, or does not answer."""

    status = 503
    type = "service_unavailable"
    retry_after_seconds = 2

    def __init__(self, message: str) -> None:
        super().__init__(message, code="explain_unavailable")


def explain_off() -> NotFound:
    """Explanations are turned off."""
    return NotFound("Explanations are turned off. Set explain.enabled: true.", code="explain_off")


def refusal(status: int, message: str, param: str | None, code: str | None) -> GatewayError:
    """The exception for a refusal by the worker."""
    kind = {400: BadRequest, 404: NotFound}.get(status, GatewayError)
    return kind(message, param=param, code=code)
