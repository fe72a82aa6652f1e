"""Fixtures of the tests of streams that go on elsewhere."""

import uvloop


def pytest_asyncio_loop_factories(config, item):
    """The event loop of production."""
    return {"uvloop": uvloop.new_event_loop}
