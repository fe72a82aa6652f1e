"""Enforces a prefix space at the engine: the ``cache_salt`` derived from it. Pure.

vLLM and SGLang accept the request field of the same name, and neither shares blocks between two salts. So prefixes of
other spaces cannot be hit, independent of the gateway's index, and response times reveal nothing about them.

The salt covers the parts that engines do not separate: tenant, scope, application, template version, tokenizer and
epoch. The others need none: model and adapter are part of the engine's own hash, another context limit or region is
another engine process. As every epoch number is unique, two spaces that differ in any part have different salts in any
case.
"""

import base64
import hmac
from collections.abc import Mapping
from typing import Any

from gateway.core.errors import BadRequest
from gateway.core.space import PrefixSpace

_PURPOSE = b"prefix-gateway cache_salt 1"
_SALT_CHARS = 32
_LONGEST_CLIENT_SALT = 128
_FORBIDDEN = frozenset("@/\\\0")


def engine_salt(secret: bytes, space: PrefixSpace, narrowed_by: str = "") -> str:
    """The salt of a space: 32 characters (192 bits) of base64url.

    Args:
        secret: Key of the HMAC-SHA256.
        space: The space.
        narrowed_by: The salt that the client sent, which narrows the space further; empty for none.
    """
    parts = [
        (b"tenant", space.tenant),
        (b"scope", space.scope),
        (b"template_version", space.template_version),
        (b"tokenizer_id", space.tokenizer_id),
        (b"epoch", str(space.epoch)),
    ]
    if space.prompt:
        parts.append((b"prompt", space.prompt))
    if narrowed_by:
        parts.append((b"client_salt", narrowed_by))
    digest = hmac.digest(secret, _canonical(parts), "sha256")
    return base64.urlsafe_b64encode(digest)[:_SALT_CHARS].decode()


def client_salt_name(secret: bytes, narrowed_by: str) -> str:
    """Pseudonym of a client's salt for display; empty for none. It does not depend on the epoch."""
    return hmac.digest(secret, b"name " + narrowed_by.encode(), "sha256").hex()[:12] if narrowed_by else ""


def client_salt(fields: Mapping[str, Any]) -> str:
    """The salt that a client sent, by the engines' own rules (vLLM 0.32.0, ``cache_salt`` of its request types).

    Returns:
        The salt; empty for none.

    Raises:
        BadRequest: the engines would reject it.
    """
    salt = fields.get("cache_salt")
    if salt is None:
        return ""
    if not isinstance(salt, str):
        raise _invalid("must be a string")
    if not salt or len(salt) > _LONGEST_CLIENT_SALT:
        raise _invalid(f"must have 1 to {_LONGEST_CLIENT_SALT} characters; leave it out for none")
    if not _FORBIDDEN.isdisjoint(salt):
        raise _invalid("may not hold any of @ / \\ or NUL")
    return salt


def _invalid(problem: str) -> BadRequest:
    return BadRequest(f"`cache_salt` {problem}.", param="cache_salt", code="invalid_cache_salt")


def _canonical(parts: list[tuple[bytes, str]]) -> bytes:
    """Tags and lengths keep the parts apart: no two lists of parts have the same encoding."""
    encoded = bytearray(len(_PURPOSE).to_bytes(4, "little") + _PURPOSE)
    for tag, value in parts:
        for part in (tag, value.encode("utf-8", "surrogatepass")):
            encoded += len(part).to_bytes(4, "little") + part
    return bytes(encoded)
