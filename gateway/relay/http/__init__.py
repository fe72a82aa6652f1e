"""The HTTP/1.1 client towards the replicas: small, on asyncio's own transports and the httptools parser.

Every request and every streamed chunk passes here, and a client that leaves must free its replica at once. Which
libraries were tried, and what each lacks, is in docs/decisions/0002-upstream-http-client.md.
"""

from gateway.relay.http.client import Exchange, HttpClient, Response
from gateway.relay.http.errors import Broken, NotConnected, ResponseTooLarge, TransportError
from gateway.relay.http.origin import Origin

__all__ = [
    "Broken",
    "Exchange",
    "HttpClient",
    "NotConnected",
    "Origin",
    "Response",
    "ResponseTooLarge",
    "TransportError",
]
