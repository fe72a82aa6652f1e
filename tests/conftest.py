"""What all tests share."""

import asyncio
import functools
import tracemalloc  # noqa: F401 - pytest imports it at a warning, and fails if another warning comes meanwhile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import fork_server
import pytest
from fastapi.dependencies import models as fastapi_models
from hypothesis import HealthCheck, settings

FOLDER = Path(__file__).parent
STARTING_PROCESSES = ("admin", "browser", "evaluation", "explain", "gateway", "observability")
"""Folders whose tests start commands or explain workers."""

TEST_SECONDS = 450
"""How long an asynchronous test may take: one that waits for ever fails under its name."""

EXAMPLES = {"fast": 25, "more": 40, "deep": 150}
"""Examples of a property test, by profile."""

# A shared machine stalls now and then; neither a slow example nor a slowly made one is a failure.
_ANY_SPEED = [HealthCheck.too_slow]
for name, examples in EXAMPLES.items():
    # Only the longer run looks for new examples: what a change has to pass gives the same answer twice.
    settings.register_profile(
        name, deadline=None, max_examples=examples, derandomize=name != "deep", suppress_health_check=_ANY_SPEED
    )
settings.load_profile("fast")

_OF_ENDPOINTS = [each for each in vars(fastapi_models).values() if isinstance(each, functools._lru_cache_wrapper)]
_SETTINGS = "_hypothesis_internal_use_settings"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Asynchronous tests have a time limit. Except in the profile ``deep``, a number of examples that a test asks for
    is an upper bound only."""
    for item in items:
        if isinstance(item, pytest.Function) and asyncio.iscoroutinefunction(item.obj):
            item.obj = _limited(item.obj)
    most = EXAMPLES.get(config.getoption("--hypothesis-profile", None) or "fast")
    if most in (None, EXAMPLES["deep"]):
        return
    for test in {item.function for item in items if isinstance(item, pytest.Function)}:
        asked: settings | None = getattr(test, _SETTINGS, None)
        if asked is not None and asked.max_examples > most:
            setattr(test, _SETTINGS, settings(asked, max_examples=most))


def _limited(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(*arguments: object, **fixtures: object) -> None:
        async with asyncio.timeout(TEST_SECONDS):
            await test(*arguments, **fixtures)

    return limited


@pytest.fixture(autouse=True)
def forget_endpoints() -> Iterator[None]:
    """FastAPI remembers what it found out about some thousand endpoints, and so would keep hundreds of gateways."""
    yield
    for cache in _OF_ENDPOINTS:
        cache.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def forked_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Gateways in the tests' process start their explain workers by a fork of what is imported already.

    The fork server is ready before the first test that needs it: no time limit of a test includes its imports.
    """
    if any(item.path.relative_to(FOLDER).parts[0] in STARTING_PROCESSES for item in request.session.items):
        fork_server.start()
    with fork_server.install():
        yield
