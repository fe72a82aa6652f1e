"""The HTTP/1.1 client for replicas, on asyncio transports and the httptools parser.

Requests come in, responses go out piece by piece; a cancelled exchange closes its connection, so that the replica stops
computing. Start with ``client.HttpClient``. Why no library is used: docs/decisions/0002-upstream-http-client.md.
"""

from gateway.http_client.client import HttpClient, HttpExchange, Origin, Response
from gateway.http_client.connection import Broken, NotConnected, ResponseTooLarge, TransportError

__all__ = [
    "Broken",
    "HttpClient",
    "HttpExchange",
    "NotConnected",
    "Origin",
    "Response",
    "ResponseTooLarge",
    "TransportError",
]
