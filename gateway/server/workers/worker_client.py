"""HTTP client for one worker's admin application, over its Unix socket."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 30.0
"""Timeout in seconds: requests to the explain worker may wait for 10 seconds."""

Headers = Sequence[tuple[bytes, bytes]]

_BETWEEN_TWO = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"date"}
)
"""Headers that are about one connection, and not about what is sent on it."""


class WorkerUnreachable(Exception):
    """The worker cannot be reached: it is starting, or it was lost."""


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """A request to the admin port.

    Attributes:
        method: Its method.
        target: Path and query, as they were sent.
        headers: Its headers, without those that are about the connection it came by.
    """

    method: str
    target: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class WorkerResponse:
    """A whole answer.

    Attributes:
        status: Its status.
        headers: Its headers.
        body: Its body.
    """

    status: int
    headers: Headers
    body: bytes


class WorkerClient:
    """One worker.

    Args:
        path: Where it listens.

    Attributes:
        is_there: Whether it has begun to serve, and was not lost since.
        reacts: Whether it reacted when it was last looked after.
        life: How often it has begun to serve.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._client: httpx.AsyncClient | None = None
        self.is_there = False
        self.reacts = True
        self.life = 0

    def open(self) -> None:
        """It has begun to serve."""
        self.is_there = self.reacts = True
        self.life += 1

    def lost(self) -> None:
        """It serves no more."""
        self.is_there = False

    async def close(self) -> None:
        """Send no more requests."""
        if self._client is not None:
            await self._client.aclose()

    async def stream(self, asked: WorkerRequest, body: AsyncIterator[bytes] | bytes) -> httpx.Response:
        """Ask it. The answer's body is still to be read, and the answer to be closed.

        Raises:
            NotThere: it cannot be reached; if it failed later, the answer's body says so.
        """
        url = httpx.URL("http://worker").copy_with(raw_path=asked.target)
        request = httpx.Request(asked.method, url, headers=list(asked.headers), content=body)
        try:
            return await self._connected().send(request, stream=True)
        except httpx.TransportError as error:
            raise WorkerUnreachable from error

    async def ask(self, asked: WorkerRequest, body: bytes = b"") -> WorkerResponse:
        """Ask it, and wait for the whole answer.

        Raises:
            NotThere: it cannot be reached, or was lost while it answered.
        """
        response = await self.stream(asked, body)
        try:
            return WorkerResponse(response.status_code, passed_on(response.headers.raw), await response.aread())
        except httpx.TransportError as error:
            raise WorkerUnreachable from error
        finally:
            await response.aclose()

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            # A connection for each question: a worker that ends waits for none that is kept.
            transport = httpx.AsyncHTTPTransport(
                uds=self._path, verify=False, limits=httpx.Limits(max_keepalive_connections=0)
            )
            timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS)
            self._client = httpx.AsyncClient(transport=transport, timeout=timeout, trust_env=False)
        return self._client


def passed_on(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The headers that are not about one connection."""
    return [header for header in headers if header[0].lower() not in _BETWEEN_TWO]
