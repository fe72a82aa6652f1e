from collections.abc import Callable
from typing import Any

import pytest

from gateway.core.api_keys import hash_key, new_key


@pytest.fixture
def key() -> str:
    return new_key()


@pytest.fixture
def acme(key: str) -> Callable[..., dict[str, Any]]:
    """The entry of a tenant with ``key``."""

    def entry(**more: Any) -> dict[str, Any]:
        return {"id": "acme", "keys": [hash_key(key)]} | more

    return entry
