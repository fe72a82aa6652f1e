"""The head of a request: its parser, what the parser lets pass, its URL, and its form without an offer to upgrade."""

from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import unquote

import httptools

from gateway.core.errors import GatewayError
from gateway.server.refusal import unknown_coding, unknown_version, wrong_host

_REMEMBERED_URLS = 64
"""URLs whose parts are kept: clients of an API send few. Each has at most ``PortOptions.max_header_bytes``."""

Headers = Iterable[tuple[bytes, bytes]]


def parser_for(protocol: object) -> httptools.HttpRequestParser:
    """A parser that reports to a connection; it also reads what follows a request that ends the connection."""
    parser = httptools.HttpRequestParser(protocol)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


@lru_cache(_REMEMBERED_URLS)
def parts_of(url: bytes) -> tuple[str, bytes, bytes]:
    """The path of a URL with percent-encoding resolved, the path as sent, and the query string.

    Raises:
        HttpParserError: it is not a URL.
    """
    found = httptools.parse_url(url)
    raw_path: bytes = found.path or b""
    path = raw_path.decode("ascii")
    return unquote(path) if "%" in path else path, raw_path, found.query or b""


def problem_of(version: str, headers: Headers) -> GatewayError | None:
    """What is wrong with a head that the parser accepts; None if nothing is.

    RFC 9112, section 3.2: a request of HTTP/1.1 has exactly one ``host``. Section 6.1: a transfer coding that the
    server does not know is answered with 501. RFC 9110, section 15.6.6: so is another version with 505.
    """
    if version not in ("1.0", "1.1"):
        return unknown_version(version)
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 and (hosts or version != "1.0"):
        return wrong_host(len(hosts))
    codings = b",".join(value for name, value in headers if name == b"transfer-encoding")
    if codings and codings.strip().lower() != b"chunked":
        return unknown_coding()
    return None


def without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """A head without its offer of another protocol (Java's client offers HTTP/2 to every server).

    A server may ignore the offer, but the parser takes what follows for the other protocol: it has to begin anew.
    """
    lines = [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join((b"%b %b HTTP/%b" % (method, url, version.encode()), *lines, b"", b""))
