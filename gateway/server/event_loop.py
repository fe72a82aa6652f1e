"""The event loop: uvloop with name lookups and blocking calls in daemon threads.

uvloop's own lookups share four threads of libuv. A lookup there cannot be cancelled: while a name server does not
answer, the lookups of a few replicas block all others, new attempts queue up behind them, and closing the loop waits
for all of them. The exit also waits for Python's default executor. Daemon threads end with the process.
"""

import asyncio
import functools
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import uvloop

from gateway.tasks import in_daemon_thread

_MAX_LOOKUPS = 64
"""Maximum concurrent lookups; further ones wait. Equal ones share one."""

Found = list[tuple[Any, ...]]
"""As ``socket.getaddrinfo`` returns it."""


class _Lookup:
    """One lookup and the futures of those that wait for it."""

    def __init__(self) -> None:
        self.waiters: set[asyncio.Future[Found]] = set()
        self.runs = False


class NameLookups:
    """Resolves names in its own threads."""

    def __init__(self) -> None:
        self._lookups: OrderedDict[tuple[Any, ...], _Lookup] = OrderedDict()
        self._running = 0

    async def find(self, *question: Any) -> Found:
        """As ``socket.getaddrinfo``, with the same arguments.

        Raises:
            OSError: the name cannot be resolved.
        """
        lookup = self._lookups.setdefault(question, _Lookup())
        waiter: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        lookup.waiters.add(waiter)
        self._start_next()
        try:
            return await waiter
        finally:
            lookup.waiters.discard(waiter)
            if not lookup.waiters and not lookup.runs:
                self._lookups.pop(question, None)

    def _start_next(self) -> None:
        if self._running >= _MAX_LOOKUPS:
            return
        question = next((question for question, lookup in self._lookups.items() if not lookup.runs), None)
        if question is not None:
            answer = in_daemon_thread(lambda: socket.getaddrinfo(*question), name="lookup")
            self._running += 1
            self._lookups[question].runs = True
            answer.add_done_callback(functools.partial(self._ended, question))

    def _ended(self, question: tuple[Any, ...], answer: "asyncio.Future[Found]") -> None:
        self._running -= 1
        lookup = self._lookups.pop(question)
        error = answer.exception()
        for waiter in lookup.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(answer.result())
            else:
                waiter.set_exception(error)
        self._start_next()


class Loop(uvloop.Loop):
    """The event loop of the gateway."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups = NameLookups()

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - asyncio's name
        proto: int = 0,
        flags: int = 0,
    ) -> Found:
        """As asyncio's."""
        try:
            return list(socket.getaddrinfo(host, port, family, type, proto, flags | socket.AI_NUMERICHOST))
        except socket.gaierror:
            return await self._lookups.find(host, port, family, type, proto, flags)

    async def create_connection(  # type: ignore[no-untyped-def]
        self,
        protocol_factory,
        host=None,
        port=None,
        *,
        ssl=None,  # noqa: A002, RUF100 - asyncio's name
        family=0,
        proto=0,
        flags=0,
        sock=None,
        server_hostname=None,
        **more,
    ):
        """As asyncio's; each address of the host is tried in turn."""
        connect = functools.partial(super().create_connection, protocol_factory, ssl=ssl, proto=proto, **more)
        if sock is not None or not host:
            return await connect(host, port, family=family, flags=flags, sock=sock, server_hostname=server_hostname)
        if ssl and server_hostname is None:
            server_hostname = host
        found = await self.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, proto=proto, flags=flags)
        return await _first_that_connects(found, functools.partial(connect, server_hostname=server_hostname))

    def run_in_executor(  # type: ignore[no-untyped-def,override]
        self, executor, func, *args
    ):
        """As asyncio's; without an executor, in a daemon thread."""
        if executor is None:
            return in_daemon_thread(functools.partial(func, *args), name="blocking-call")
        return super().run_in_executor(executor, func, *args)


async def _first_that_connects(found: Found, connect: Callable[..., Any]) -> Any:
    errors: list[OSError] = []
    for family, _, _, _, address in found:
        host, port = _numeric(address)
        try:
            return await connect(host, port, family=family)
        except ssl.SSLError:
            raise
        except OSError as error:
            errors.append(error)
    if not errors:
        raise OSError("the name has no addresses")
    if len({str(error) for error in errors}) == 1:
        raise errors[0]
    raise OSError(f"no address can be connected to: {'; '.join(map(str, errors))}")


def _numeric(address: tuple[Any, ...]) -> tuple[str, int]:
    host, port, *scope = address
    return (f"{host}%{scope[1]}" if len(scope) == 2 and scope[1] else host), port
