"""Runs a gateway: both ports in one event loop, until a signal ends it.

SIGHUP, or a change of a file that the configuration was made from, has the configuration read again.
"""

import asyncio
import contextlib
import gc
import math
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import structlog
import uvicorn
import uvloop

from gateway.api.protocol import limited_protocol
from gateway.app import Gateway
from gateway.reload import Reloader
from gateway.settings import Settings
from gateway.values.errors import ConfigInvalid

_log = structlog.get_logger("gateway.server")


def serve(settings: Settings, config: Path, ready: Callable[[str, str], None] | None = None) -> None:
    """Serve until SIGINT or SIGTERM. Open answers get ``server.shutdown_grace_seconds``; a second signal ends them now.

    Args:
        settings: The configuration.
        config: The file it came from; read again when it changes, and on SIGHUP.
        ready: Called with the public and the admin URL once both ports accept connections.

    Raises:
        ConfigInvalid: a port is taken or an address is not this machine's.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, config, ready))


async def _serve(settings: Settings, config: Path, ready: Callable[[str, str], None] | None) -> None:
    server = settings.server
    with contextlib.ExitStack() as stack:
        public_socket = stack.enter_context(_bound("server.port", server.host, server.port))
        admin_socket = stack.enter_context(_bound("server.admin_port", server.admin_host, server.admin_port))
        gateway = Gateway(settings)
        reloader = Reloader(config, settings, gateway.reload, gateway.reload_refused)
        servers = [
            _Server(
                uvicorn.Config(
                    app,
                    http=limited_protocol(server.max_header_bytes),
                    ws="none",
                    lifespan="off",
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    proxy_headers=False,
                    timeout_keep_alive=math.ceil(server.keep_alive_seconds),
                    timeout_graceful_shutdown=math.ceil(server.shutdown_grace_seconds) + _LAST_WORDS_SECONDS,
                )
            )
            for app in (gateway.public, gateway.admin)
        ]
        await gateway.start()
        _relax_garbage_collection()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def signalled() -> None:
            if stop.is_set():
                gateway.public.interrupt()  # asked twice: do not wait for open answers
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signalled)
        loop.add_signal_handler(signal.SIGHUP, reloader.ask)
        running = [
            loop.create_task(one.serve(sockets=[sock]))
            for one, sock in zip(servers, (public_socket, admin_socket), strict=True)
        ]
        for one in servers:
            await one.listening.wait()
        urls = [_url(sock) for sock in (public_socket, admin_socket)]
        _log.info(
            "gateway_ready",
            public=urls[0],
            admin=urls[1],
            dashboard=f"{urls[1]}/dashboard",
            policy=settings.placement.policy,
        )
        if ready is not None:
            ready(urls[0], urls[1])
        reloader.start()
        await stop.wait()
        await reloader.stop()
        _log.info("gateway_stopping", grace_seconds=server.shutdown_grace_seconds)
        gateway.end_live()
        loop.call_later(_STALLED_SECONDS, servers[1].cut_stalled)
        for one in servers:
            one.should_exit = True
        _, pending = await asyncio.wait(running, timeout=server.shutdown_grace_seconds)
        if pending:
            gateway.public.interrupt()
        await asyncio.gather(*running)
        await gateway.stop()


def _relax_garbage_collection() -> None:
    """Spare every request its share of walking over what start-up built (tokenizers, templates, libraries).

    Requests make a few hundred short-lived objects each and hardly any cycles, so with Python's default thresholds the
    collector would run for every other request and find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


_LAST_WORDS_SECONDS = 5
"""After the grace period: time for the last words of open answers, before their connections are cut."""

_STALLED_SECONDS = 1.0
"""How long whoever listens at the admin port may take to read its last words."""


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: two servers share this process.

    Attributes:
        listening: Set once connections are accepted.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self.listening.set()

    def cut_stalled(self) -> None:
        """Cut connections whose client does not read what is there for it: the server cannot end before they do."""
        for connection in list(self.server_state.connections):
            if connection.transport.get_write_buffer_size():
                connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]  # uvicorn's own is untyped in the same way
        """Leave the signals alone."""
        yield


def _bound(key: str, host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off, which would hold small answers back for 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ConfigInvalid(
            [f"{key}: cannot listen on {host}:{port}: {error.strerror}. Set {key} to a free port."]
        ) from error
    # Not listening yet: until the gateway is ready, clients are refused and not left waiting.
    sock.setblocking(False)
    return sock


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
