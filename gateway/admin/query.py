"""Query parameters of the admin API."""

from collections.abc import Collection

from fastapi import Request

from gateway.core.api_keys import redacted
from gateway.core.errors import BadRequest

_SHOWN_CHARS = 200


def read_filters(request: Request, known: Collection[str]) -> dict[str, str]:
    """The parameters that are given and not empty; API keys in values are masked.

    Raises:
        BadRequest: A parameter is unknown.
    """
    for given in request.query_params:
        if given not in known:
            name = redacted(given)[:_SHOWN_CHARS]
            raise BadRequest(
                f"There is no filter {name!r}; there is {', '.join(known) or 'none here'}.",
                param=name,
                code="unknown_parameter",
            )
    return {name: redacted(value) for name, value in request.query_params.items() if value}
