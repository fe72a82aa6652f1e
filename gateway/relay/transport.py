"""The HTTP client towards the replicas, and the only place that knows it.

pyreqwest (Rust's reqwest) costs a tenth of httpx per request. It buffers 64 KiB of a streamed answer unless told not
to, which would hold events back and keep a connection open after its client has left; hence the limit of 0.
"""

import contextlib
from collections.abc import Sequence
from datetime import timedelta

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import ConnectError, ConnectTimeoutError, PyreqwestError, RequestTimeoutError
from pyreqwest.request import StreamRequest
from pyreqwest.response import Response

from gateway.values.outcome import Ending

TransportError = PyreqwestError
"""What requests and reads raise; ``ending_of`` and ``reason_of`` say what it means."""


_IDLE_SECONDS = 4.0
"""Connections idle longer are not used again. Engines close theirs after 5 seconds (uvicorn's default, which vLLM and
SGLang keep); a request sent at that moment would fail, and nobody could tell whether it had been computed."""


class TransportFailed(Exception):
    """A short exchange with a replica got no complete answer."""


class Transport:
    """Pooled keep-alive connections to all replicas.

    Args:
        connect_timeout_seconds: Limit for making a connection.
    """

    def __init__(self, connect_timeout_seconds: float) -> None:
        self._client: Client = (
            ClientBuilder()
            # The answer's bytes travel on as they are, so nothing may be unpacked, followed or added here.
            .gzip(enable=False)
            .brotli(enable=False)
            .zstd(enable=False)
            .deflate(enable=False)
            .follow_redirects(enable=False)
            .referer(enable=False)
            .no_proxy()
            .http1_lower_case_headers()
            .user_agent("prefix-gateway")
            .connect_timeout(timedelta(seconds=connect_timeout_seconds))
            .pool_idle_timeout(timedelta(seconds=_IDLE_SECONDS))
            .build()
        )

    def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> StreamRequest:
        """A request to be sent by entering it: ``async with transport.post(…) as response``.

        The answer's body is read from ``response.body_reader``, chunk by chunk as it comes. Leaving the context closes
        the connection if the body was not read to its end. Entering and reading raise ``TransportError``.
        """
        return self._client.post(url).headers(headers).body_bytes(body).streamed_read_buffer_limit(0).build_streamed()

    async def fetch(
        self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes | None, timeout_seconds: float
    ) -> tuple[int, bytes]:
        """One short exchange: status and body.

        Raises:
            TransportFailed: no complete answer within the time.
        """
        try:
            builder = self._client.request(method, url).headers(headers).timeout(timedelta(seconds=timeout_seconds))
            response = await (builder if body is None else builder.body_bytes(body)).build().send()
            return response.status, bytes(await response.bytes())
        except TransportError as error:
            raise TransportFailed(reason_of(error)) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def response_headers(response: Response) -> list[tuple[str, str]]:
    """An answer's headers, names in lower case. A value that is not text is left out."""
    try:
        return list(response.headers.items())
    except ValueError:
        found = []
        for name in dict.fromkeys(response.headers.keys()):
            with contextlib.suppress(ValueError):
                found += [(name, value) for value in response.get_header_all(name)]
        return found


def ending_of(error: PyreqwestError) -> Ending:
    """How a request ended that failed: ``NOT_CONNECTED``, ``TIMED_OUT`` or ``BROKEN``."""
    if isinstance(error, ConnectTimeoutError):
        return Ending.NOT_CONNECTED
    if isinstance(error, ConnectError):
        # A connection that closes before the answer's head is reported as a ConnectError too; the causes tell.
        sent = any("(SendRequest)" in cause["message"] for cause in error.details["causes"] or ())
        return Ending.BROKEN if sent else Ending.NOT_CONNECTED
    return Ending.TIMED_OUT if isinstance(error, RequestTimeoutError) else Ending.BROKEN


def reason_of(error: PyreqwestError) -> str:
    """The innermost cause, in the library's words."""
    details = getattr(error, "details", None) or {}
    causes = [cause["message"] for cause in details.get("causes") or ()]
    return causes[-1] if causes else error.message
