"""Cross-origin requests of browsers (CORS): which web pages may use the public port.

A browser sends a page's request to another origin only after a preflight (``OPTIONS``) has allowed it, and shows the
page an answer only if the answer carries ``access-control-allow-origin``. Everything the public port answers gets its
headers here: generated text, streams, errors, and what the HTTP layer refuses before there is a request.

``access-control-allow-credentials`` is never sent: clients authenticate with a key that a page sends itself, and never
with cookies. So a page can do no more than any other client without a key, even with the origin ``*``.

Protocol: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

from gateway.config.server_settings import ANY_ORIGIN
from gateway.core.errors import Forbidden

Headers = list[tuple[bytes, bytes]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_METHODS = b"GET, HEAD, POST, DELETE"
_MAX_AGE_SECONDS = b"3600"
"""How long a browser may remember the answer to a preflight. Browsers cut it to 7,200 (Chromium) or 86,400."""

_MAX_ALLOWED_HEADERS = 64
"""Most request headers that one preflight is allowed; the SDKs for browsers send about 15."""

_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")

_REPLACED = frozenset(
    {b"access-control-allow-origin", b"access-control-allow-credentials", b"access-control-expose-headers"}
)
"""CORS headers of engines, which are dropped: most engines allow every origin by default."""

_PROXY_HEADERS = frozenset({b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip"})
_PROXY_PREFIX = b"x-forwarded-"
"""Headers in which proxies name the client. A page has no use for them."""


class OriginNotAllowed(Forbidden):
    """A preflight of a page whose origin is not configured."""

    def __init__(self) -> None:
        super().__init__(
            "Web pages of this origin may not use the gateway. The gateway's operator adds the origin to"
            " server.cors_origins, as in [https://app.example.com].",
            code="origin_not_allowed",
        )


class Cors:
    """Decides which origins are allowed. Immutable.

    Args:
        origins: ``server.cors_origins``: exact origins, or ``*`` alone.
        proxy_headers: Further request headers that only proxies may send, in lower case.
    """

    def __init__(self, origins: Iterable[str], proxy_headers: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.encode("ascii") for origin in origins)
        self._any = ANY_ORIGIN.encode() in self._origins
        self._denied = _PROXY_HEADERS.union(name.encode("ascii") for name in proxy_headers)

    def __bool__(self) -> bool:
        return bool(self._origins)

    def answer_headers(self, request_headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """The CORS headers of the answer to a request with these headers; the request may be incomplete.

        With exact origins every answer says ``vary: origin``, or a shared cache would serve one origin's answer to
        another.
        """
        if self._any:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", b"*")]
        if not self._origins:
            return []
        origin = _value(request_headers, b"origin")
        if origin not in self._origins:
            return [(b"vary", b"origin")]
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"*"),
            (b"vary", b"origin"),
        ]

    def sending(self, request_headers: Iterable[tuple[bytes, bytes]], send: Send) -> Send:
        """An ASGI ``send`` that adds ``answer_headers``. They replace an engine's CORS headers."""
        own = self.answer_headers(request_headers)

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = replaced(message["headers"], own)
            await send(message)

        return send_with_headers

    def preflight(self, request_headers: Sequence[tuple[bytes, bytes]]) -> Headers:
        """The headers of the answer to a preflight besides ``answer_headers``.

        Raises:
            OriginNotAllowed: The page may not use the gateway.
        """
        if not self._any and _value(request_headers, b"origin") not in self._origins:
            raise OriginNotAllowed
        return [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", self._allowed(request_headers)),
            (b"access-control-max-age", _MAX_AGE_SECONDS),
        ]

    def _allowed(self, request_headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        """The requested headers that are end-to-end: unknown ones are passed to engines."""
        asked = _value(request_headers, b"access-control-request-headers").lower().split(b",")
        names = [name.strip() for name in asked[:_MAX_ALLOWED_HEADERS]]
        return b", ".join(name for name in names if _HEADER_NAME.fullmatch(name) and not self._is_denied(name))

    def _is_denied(self, name: bytes) -> bool:
        return name in self._denied or name.startswith(_PROXY_PREFIX)


def replaced(headers: Iterable[tuple[bytes, bytes]], own: Headers) -> Headers:
    """The headers of an answer with ``answer_headers`` in place of an engine's CORS headers."""
    return [each for each in headers if each[0] not in _REPLACED] + own


def is_preflight(method: str, request_headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request is a CORS preflight."""
    if method != "OPTIONS":
        return False
    names = {name for name, _ in request_headers}
    return b"origin" in names and b"access-control-request-method" in names


def _value(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    return next((value for each, value in headers if each == name), b"")
