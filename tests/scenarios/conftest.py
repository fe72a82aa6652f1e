import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from socket import AF_UNIX, socket

import pytest
import uvloop

from gateway.explain.worker.explain_parts import ExplainParts
from gateway.explain.worker.explain_supervisor import ExplainProcess
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.explain.worker.process import ConnectionClosed, Session

# The gateway, the engines and the tenants are started as in the gateway's own tests.
sys.path.append(str(Path(__file__).parent.parent / "gateway"))


def pytest_asyncio_loop_factories(config, item):
    """The event loop of production."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def explained_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the process that explains does, in a thread of this one: it says the same, and need not start every time."""
    with tempfile.TemporaryDirectory(prefix="explain-") as folder:
        place = Path(folder) / "line"

        async def start(child: ExplainProcess, command: Sequence[str], door: int | None = None) -> None:
            assert command
            assert door is None
            place.unlink(missing_ok=True)
            with socket(AF_UNIX) as listener:
                listener.bind(str(place))
                listener.listen()
                await child.join(place)
                connection, _ = listener.accept()
            threading.Thread(target=_explain, args=(connection,), name="explain", daemon=True).start()

        monkeypatch.setattr(ExplainProcess, "start", start)
        yield


def _explain(connection: socket) -> None:
    with connection:
        try:
            Session(connection, ExplainWorker(ExplainParts), worked=time.thread_time).run()
        except ConnectionClosed:
            return
