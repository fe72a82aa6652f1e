"""What all tests share."""

import functools
from collections.abc import Iterator

import pytest
from fastapi.dependencies import models as fastapi_models
from hypothesis import settings

# A shared machine stalls now and then; a slow example is no failure.
settings.register_profile("default", deadline=None)
settings.load_profile("default")

_OF_ENDPOINTS = [each for each in vars(fastapi_models).values() if isinstance(each, functools._lru_cache_wrapper)]


@pytest.fixture(autouse=True)
def forget_endpoints() -> Iterator[None]:
    """FastAPI remembers what it found out about some thousand endpoints, and so would keep hundreds of gateways."""
    yield
    for cache in _OF_ENDPOINTS:
        cache.cache_clear()
