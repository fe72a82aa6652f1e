"""Fixtures of the tests of explanations."""

import uvloop


def pytest_asyncio_loop_factories(config, item):
    """The event loop of production."""
    return {"uvloop": uvloop.new_event_loop}
