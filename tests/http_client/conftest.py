"""Fixtures of the HTTP client's tests."""

from gateway.server.event_loop import Loop


def pytest_asyncio_loop_factories(config, item):
    """The event loop of production."""
    return {"uvloop": Loop}
