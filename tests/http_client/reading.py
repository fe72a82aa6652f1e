"""A reader of responses that takes one part at a time, and none before the last one was read."""

import asyncio
import contextlib


class Reading:
    """A response; a ``ResponseReceiver``.

    Attributes:
        status: HTTP status.
        headers: Its headers.
    """

    def __init__(self):
        self.status = 0
        self.headers = []
        self._begun = asyncio.Event()
        self._news = asyncio.Event()
        self._parts = []
        self._complete = False
        self._error = None

    def sent(self, exchange):
        self._exchange = exchange

    def response_begun(self, status, headers):
        self.status, self.headers = status, headers
        self._begun.set()

    def body_received(self, data, chunk=None):
        self._parts.append(data)
        self._exchange.pause()
        self._news.set()

    def response_complete(self):
        self._complete = True
        self._news.set()

    def failed(self, error):
        self._error = error
        self._begun.set()
        self._news.set()

    async def begun(self):
        await self._begun.wait()
        if self._error is not None:
            raise self._error

    async def read(self):
        """The next part; None at the end."""
        while not self._parts:
            if self._error is not None:
                raise self._error
            if self._complete:
                return None
            self._news.clear()
            await self._news.wait()
        part = self._parts.pop(0)
        self._exchange.resume()
        return part


@contextlib.asynccontextmanager
async def reading(client, method, origin, path, headers=(), body=b""):
    """Send a request; the exchange is closed in the end."""
    response = Reading()
    exchange = client.send(method, origin, path, headers, body, response)
    response.sent(exchange)
    try:
        await response.begun()
        yield response
    finally:
        exchange.close()
