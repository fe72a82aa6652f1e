"""What is wrong with bytes that are no acceptable request, and the response: it closes the connection."""

import asyncio
from collections.abc import Sequence

from gateway.api.error_responses import problem_body, problem_headers
from gateway.core.errors import BadRequest, GatewayError, HeadersTooLarge, NotSupported
from gateway.core.exchange import status_line

_LINGER_SECONDS = 2.0
"""How long a refused client may go on sending. Closed at once, with bytes of it unread, its connection would be reset,
and it might never see the answer."""


def send_refusal(
    loop: asyncio.AbstractEventLoop,
    transport: asyncio.Transport,
    problem: GatewayError,
    own_headers: Sequence[tuple[bytes, bytes]],
) -> None:
    """Send a whole response, and close the connection when the client has had the time to read it.

    Args:
        loop: The running loop.
        transport: Of the client's connection.
        problem: What is wrong.
        own_headers: Headers that are added.
    """
    transport.write(_refusal(problem, own_headers))
    if transport.can_write_eof():
        transport.write_eof()
    loop.call_later(_LINGER_SECONDS, transport.close)


def _refusal(problem: GatewayError, own_headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    body = problem_body(problem)
    headers = problem_headers(problem, None) | {"content-length": str(len(body)), "connection": "close"}
    lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
    lines += [b"%b: %b\r\n" % header for header in own_headers]
    return b"".join((status_line(problem.status), *lines, b"\r\n", body))


def malformed() -> GatewayError:
    """The bytes are not HTTP."""
    return BadRequest(
        "This is not well-formed HTTP/1.1. Look for control characters (such as a newline) in the URL or in a"
        " header, and for more than one length of the body (content-length, transfer-encoding).",
        code="malformed_http",
    )


def wrong_host(count: int) -> GatewayError:
    """The request names no host, or ``count`` of them."""
    return BadRequest(
        f"The request has {count or 'no'} host header{'s' if count else ''}. HTTP/1.1 requires exactly one.",
        code="malformed_http",
    )


def unknown_version(version: str) -> GatewayError:
    """The request is not in a version of HTTP that is read here."""
    problem = NotSupported(f"HTTP/{version} is not read here. Send HTTP/1.1.", code="unknown_http_version")
    problem.status = 505
    return problem


def unknown_coding() -> GatewayError:
    """The body is encoded for the transfer in a way that is not implemented."""
    return NotSupported(
        "The only transfer-encoding that is read is chunked. Send the body as it is, with content-length or in chunks.",
        code="unknown_transfer_encoding",
    )


def too_many_headers(limit: int) -> GatewayError:
    """The request has more than ``limit`` headers."""
    return HeadersTooLarge(f"The request has more than {limit} headers. Send fewer.", code="headers_too_large")


def headers_too_large(limit: int) -> GatewayError:
    """The request's line and headers, or the framing of its body, have more than ``limit`` bytes."""
    return HeadersTooLarge(
        f"The URL and the headers are larger than {limit} bytes together. Send fewer or shorter headers, or raise"
        " server.max_header_bytes.",
        code="headers_too_large",
    )


def chunks_too_small(count: int, size: int) -> GatewayError:
    """The body has more than ``count`` chunks of less than ``size`` bytes on average."""
    return BadRequest(
        f"The body has more than {count} chunks of less than {size} bytes on average. Send it in larger chunks, or"
        " with content-length.",
        code="chunks_too_small",
    )
