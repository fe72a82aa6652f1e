"""The head of a request: its parser, the parts of its URL, its size, and its form without an offer to upgrade."""

from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import unquote

import httptools

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


def head_bytes(method: bytes, url: bytes, headers: Headers) -> int:
    """Size of a head in its usual form."""
    line = len(method) + len(url) + len("  HTTP/1.1\r\n")
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in headers) + len("\r\n")


def without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """A head without its offer of another protocol (Java's client offers HTTP/2 to every server).

    A server may ignore the offer, but the parser takes what follows for the other protocol: it has to begin anew.
    """
    lines = [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join((b"%b %b HTTP/%b" % (method, url, version.encode()), *lines, b"", b""))
