"""Access to the admin port: tokens, roles, and protection against requests of foreign web pages."""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.config.server_settings import AdminTokenSettings
from gateway.core.api_keys import KeyRing, bearer, hash_key, parse_hash
from gateway.core.errors import Forbidden, Unauthorized

PLAIN_TOKEN_ID = "admin_token"  # noqa: S105 - a name
"""Id of ``server.admin_token`` in the audit log."""

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@/]+)(?::[0-9]{1,5})?")


class Role(StrEnum):
    """The permissions of a token."""

    READ = "read"
    """GET."""
    OPERATE = "operate"
    """GET, POST and DELETE."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The authenticated operator.

    Attributes:
        id: Name of the token; empty if no token is required.
        role: The token's role.
    """

    id: str
    role: Role


@dataclass(frozen=True, slots=True)
class _TokenEntry:
    operator: Operator
    expires_at: float | None


class TokenExpired(Unauthorized):
    """An expired token.

    Attributes:
        token_id: Its name.
    """

    def __init__(self, message: str, token_id: str) -> None:
        super().__init__(message, code="unauthorized", headers=_CHALLENGE)
        self.token_id = token_id


_CHALLENGE = (("www-authenticate", "Bearer"),)


class AdminAccess:
    """The tokens of the admin port.

    Args:
        plain: ``server.admin_token``; it has all permissions.
        tokens: ``server.admin_tokens``. Without any token every client that can connect has all permissions.
    """

    def __init__(self, plain: str | None = None, tokens: Iterable[AdminTokenSettings] = ()) -> None:
        self.replace(plain, tokens)

    def replace(self, plain: str | None, tokens: Iterable[AdminTokenSettings]) -> None:
        """Replace the tokens."""
        entries = {each.digest: _TokenEntry(Operator(each.id, Role(each.role)), each.expires_at) for each in tokens}
        if plain is not None:
            entries[parse_hash(hash_key(plain))] = _TokenEntry(Operator(PLAIN_TOKEN_ID, Role.OPERATE), None)
        self._ring = KeyRing(entries)

    @property
    def is_open(self) -> bool:
        """Whether no token is required."""
        return not len(self._ring)

    def operator(self, authorization: bytes | None, wall: float) -> Operator:
        """Who asks.

        Args:
            authorization: The header, if there is one.
            wall: Unix seconds.

        Raises:
            Unauthorized: a token is required, and none or an invalid one was sent.
        """
        if self.is_open:
            return Operator("", Role.OPERATE)
        token = bearer(authorization)
        if token is None:
            raise Unauthorized(
                "A token is required: send `authorization: Bearer TOKEN` with one of server.admin_token and"
                " server.admin_tokens.",
                code="unauthorized",
                headers=_CHALLENGE,
            )
        entry = self._ring.find(token)
        if entry is None:
            raise Unauthorized(
                "The token is not valid: it is none of server.admin_token and server.admin_tokens.",
                code="unauthorized",
                headers=_CHALLENGE,
            )
        if entry.expires_at is not None and wall >= entry.expires_at:
            raise TokenExpired(
                f"The token {entry.operator.id!r} has expired: make another one with `prefix-gateway key --admin`.",
                entry.operator.id,
            )
        return entry.operator


def check_role(operator: Operator, method: str) -> None:
    """Check that an operator's role allows a method.

    Raises:
        Forbidden: It does not.
    """
    if operator.role is not Role.OPERATE and method not in ("GET", "HEAD"):
        raise Forbidden(
            f"The token {operator.id!r} may only look: this needs one of server.admin_tokens with role operate.",
            code="role_required",
        )


def check_host(hosts: Iterable[str]) -> None:
    """Check that a request without a token is addressed to this machine by address, not by name.

    A web page of a name that its owner points at 127.0.0.1 counts as the admin port's own in the operator's browser
    (DNS rebinding). Its requests carry that name.

    Args:
        hosts: Values of the ``host`` header.

    Raises:
        Forbidden: It was addressed to a name.
    """
    for host in hosts:
        match = _HOST.fullmatch(host)
        name = match[1].strip("[]") if match else ""
        if not _is_address(name) and name.lower().removesuffix(".") != "localhost":
            raise Forbidden(
                "Without a token the admin port answers only to an IP address or localhost: use http://127.0.0.1 with"
                " its port, or set server.admin_token.",
                code="host_not_allowed",
            )


def check_same_site(headers: Mapping[str, str]) -> None:
    """Check that a request that changes state does not come from a page of another site (CSRF).

    Raises:
        Forbidden: It does.
    """
    origin = headers.get("origin")
    foreign = origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()
    if foreign or headers.get("sec-fetch-site", "").lower() == "cross-site":
        raise Forbidden("A web page of another site may not do this.", code="cross_site")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
