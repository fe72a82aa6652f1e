"""The HTTP client towards the replicas, and the only place that knows it.

pyreqwest (Rust's reqwest) costs a tenth of httpx per request. It buffers 64 KiB of a streamed answer unless told not
to, which would hold events back and keep a connection open after its client has left; hence the limit of 0.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import ConnectError, ConnectTimeoutError, PyreqwestError, RequestTimeoutError
from pyreqwest.response import Response

from gateway.values.outcome import Ending


class TransportFailed(Exception):
    """A replica could not be talked to.

    Attributes:
        ending: ``NOT_CONNECTED``, ``BROKEN`` or ``TIMED_OUT``.
    """

    def __init__(self, ending: Ending, message: str) -> None:
        super().__init__(message)
        self.ending = ending


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
            .build()
        )

    @contextlib.asynccontextmanager
    async def post(self, url: str, headers: Sequence[tuple[str, str]], body: bytes) -> AsyncIterator[Response]:
        """Send a request; the answer's body is read from ``response.body_reader``, chunk by chunk as it comes.

        Leaving the context closes the connection if the body was not read to its end.

        Raises:
            TransportFailed: while connecting, sending or reading, also from inside the context.
        """
        with _translated():
            request = (
                self._client.post(url).headers(headers).body_bytes(body).streamed_read_buffer_limit(0).build_streamed()
            )
            async with request as response:
                yield response

    async def fetch(
        self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes | None, timeout_seconds: float
    ) -> tuple[int, bytes]:
        """One short exchange: status and body.

        Raises:
            TransportFailed: no complete answer within the time.
        """
        with _translated():
            builder = self._client.request(method, url).headers(headers).timeout(timedelta(seconds=timeout_seconds))
            response = await (builder if body is None else builder.body_bytes(body)).build().send()
            return response.status, bytes(await response.bytes())

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


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (ConnectTimeoutError, ConnectError) as error:
        # A connection that closes before the answer's head is reported as a ConnectError too; the causes tell.
        connected = not isinstance(error, ConnectTimeoutError) and any(
            "(SendRequest)" in cause["message"] for cause in error.details["causes"] or ()
        )
        raise TransportFailed(Ending.BROKEN if connected else Ending.NOT_CONNECTED, _reason(error)) from error
    except RequestTimeoutError as error:
        raise TransportFailed(Ending.TIMED_OUT, _reason(error)) from error
    except PyreqwestError as error:
        raise TransportFailed(Ending.BROKEN, _reason(error)) from error


def _reason(error: PyreqwestError) -> str:
    details = getattr(error, "details", None) or {}
    causes = [cause["message"] for cause in details.get("causes") or ()]
    return causes[-1] if causes else error.message
