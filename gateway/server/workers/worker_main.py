"""The program of one worker: ``python -m gateway.server.workers.worker_main FD``, started by the supervisor.

It ignores SIGINT: Ctrl-C reaches the whole process group, and a second order to end would not wait for open answers.
SIGTERM ends it as an order of the supervisor does; the supervisor then starts another one. When the supervisor is gone,
it ends, too.
"""

import asyncio
import contextlib
import signal
import socket
import sys
from typing import Any

from gateway.server.forced_end import end_process
from gateway.server.workers.worker_process import WorkerMessageSplitter, message, read_worker_start


def main() -> int:
    """The command. Exit codes as for every other."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    line = socket.socket(fileno=int(sys.argv[1]))
    try:
        return _work(line)
    except EOFError:
        return 0  # the supervisor ended before this began


def _work(line: socket.socket) -> int:
    start = read_worker_start(line)
    from gateway.core.errors import ConfigInvalid
    from gateway.fleet.drains import DrainOrder
    from gateway.server.http_server import bound
    from gateway.server.run import Part, ServeOptions, serve
    from gateway.telemetry import configure_logs

    settings, server = start.settings, start.settings.server
    configure_logs(settings.log.format, settings.log.level, start.place.number)

    def say(**members: Any) -> None:
        # A few bytes: they fit. If the supervisor is gone, the end of the line says so as well.
        with contextlib.suppress(OSError):
            line.sendall(message(**members))

    def listen(orders: ServeOptions) -> None:
        def take(order: dict[str, Any]) -> None:
            match order["do"]:
                case "end":
                    orders.end(drain=order["drain"])
                case "now":
                    orders.end_now()
                case "reload":
                    orders.reload()
                case "drain":
                    orders.gateway.take_order(DrainOrder(*order["order"]))
                case "replica":
                    orders.gateway.take_replica(*order["order"][:2])
                case "ping":
                    say(pong=True)

        loop = asyncio.get_running_loop()
        messages = WorkerMessageSplitter(take)

        def readable() -> None:
            try:
                data = line.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                messages.feed(data)
                return
            loop.remove_reader(line)
            orders.end(drain=False)

        line.setblocking(False)
        loop.add_reader(line, readable)
        loop.add_signal_handler(signal.SIGTERM, lambda: orders.end(drain=True))

    try:
        public = bound("server.port", server.host, start.port, shared=True)
        serve(settings, start.config, lambda _public, _admin: say(ready=True), Part(start.place, public, listen))
    except ConfigInvalid as invalid:
        say(problems=list(invalid.problems))
        return 2
    return 0


if __name__ == "__main__":
    end_process(main())
