"""Entry point of the child processes: ``engines``, or ``gateway CONFIG``. Prints one JSON line when it is ready.

It runs until its standard input ends. The parent holds the other end of that pipe, which the operating system closes
when the parent ends, so no process is left even if the parent is killed.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

_GRACE_SECONDS = 3.0


def main() -> int:
    """Run until standard input ends. Exit codes as for every command."""
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    try:
        if sys.argv[1] == "engines":
            _run_engines()
        else:
            _run_gateway(Path(sys.argv[2]))
    except KeyboardInterrupt:
        return 130
    return 0


def _run_engines() -> None:
    import uvloop

    from gateway.demo.demo_plan import ENGINE, REPLICAS
    from gateway.simulator.simulated_engine import SimulatedEngine, serve_engines

    def ready(engines: list[SimulatedEngine]) -> None:
        _say({"urls": [engine.url for engine in engines]})

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_engines([ENGINE] * REPLICAS, ready))


def _run_gateway(config: Path) -> None:
    from gateway.config.settings import load_settings
    from gateway.core.errors import ConfigInvalid
    from gateway.server.run import serve
    from gateway.telemetry import configure_logs

    try:
        settings = load_settings(config)
        configure_logs(settings.log.format, settings.log.level)
        serve(settings, config, lambda public, admin: _say({"urls": [public, admin]}))
    except ConfigInvalid as error:
        _say({"problem": str(error)})


def _say(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)


def _end_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
