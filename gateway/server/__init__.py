"""The processes and listeners of a gateway: sockets, connection limits, reload, shutdown, worker processes.

In: settings and a configuration file. Out: a running gateway. Start with ``run``.
"""

import sys
from typing import Any, cast


def _import_structlog_without_rich() -> None:
    """structlog imports rich where it is installed, for coloured tracebacks: a twentieth of a second of the start.

    The logs of a gateway hold tracebacks as text (``telemetry/logs.py``). Commands that show tables import rich later.
    """
    if "structlog" in sys.modules or "rich" in sys.modules:
        return
    sys.modules["rich"] = cast(Any, None)
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


_import_structlog_without_rich()
