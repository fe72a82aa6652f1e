"""Fixtures of the explaining process's tests."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories(config, item):
    """The event loop of production, and the one of the standard library."""
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
