"""The HTTP/1.1 client towards the replicas: small, on asyncio's own transports and the httptools parser.

Every request and every streamed chunk passes here, and a client that leaves must free its replica at once. Which
libraries were tried, and what each lacks, is in docs/decisions/0002-upstream-http-client.md.
"""

from gateway.http_client.client import HttpClient, HttpExchange, Origin, Response
from gateway.http_client.transport_errors import Broken, NotConnected, ResponseTooLarge, TransportError

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
