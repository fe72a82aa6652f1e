"""What a request's headers say of who asks."""

from collections.abc import Sequence
from typing import NamedTuple

from gateway.core.errors import BadRequest

AUTHORIZATION = b"authorization"
SCOPE = b"x-cache-scope"


class Credentials(NamedTuple):
    """Header values without the blanks around them; None for a header that is not there.

    Attributes:
        authorization: Holds the key.
        tenant: Only a trusted proxy may send it.
        scope: Which of the key's scopes; an empty header says as little as none.
    """

    authorization: bytes | None
    tenant: bytes | None
    scope: bytes | None


def read_claims(headers: Sequence[tuple[bytes, bytes]], tenant_header: bytes) -> Credentials:
    """The claims.

    Raises:
        BadRequest: One of the headers stands there twice with different values. A client that puts its own in front of
            the one its proxy adds wants one of the two servers to read the wrong one.
    """
    authorization = tenant = scope = None
    for name, value in headers:
        if name == AUTHORIZATION:
            authorization = _only(name, authorization, value)
        elif name == SCOPE:
            scope = _only(name, scope, value)
        elif name == tenant_header:
            tenant = _only(name, tenant, value)
    return Credentials(authorization, tenant, scope or None)


def _only(name: bytes, earlier: bytes | None, value: bytes) -> bytes:
    value = value.strip(b" \t")
    if earlier is not None and earlier != value:
        raise BadRequest(
            f"The header {name.decode('ascii')} is given more than once, with different values. Send it once.",
            code="duplicate_header",
        )
    return value
