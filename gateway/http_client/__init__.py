"""The HTTP/1.1 client for replicas, on asyncio transports and the httptools parser.

Requests come in, responses go to receivers part by part. An exchange that is closed early closes its connection, so
that the replica stops computing. Start with ``client.HttpClient``. Why no library is used:
docs/decisions/0002-upstream-http-client.md.
"""

from gateway.http_client.client import HttpClient, HttpExchange, HttpResponse, Origin
from gateway.http_client.connection import (
    Broken,
    NotConnected,
    ResponseReceiver,
    ResponseTooLarge,
    TransportError,
)

__all__ = [
    "Broken",
    "HttpClient",
    "HttpExchange",
    "HttpResponse",
    "NotConnected",
    "Origin",
    "ResponseReceiver",
    "ResponseTooLarge",
    "TransportError",
]
