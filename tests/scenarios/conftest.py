import sys
from pathlib import Path

import uvloop

# The gateway, the engines and the tenants are started as in the gateway's own tests.
sys.path.append(str(Path(__file__).parent.parent / "gateway"))


def pytest_asyncio_loop_factories(config, item):
    """The event loop of production."""
    return {"uvloop": uvloop.new_event_loop}
