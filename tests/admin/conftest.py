import pytest
from admin_port import PLAIN, TOKENS, AdminPort

from gateway.admin import AdminAccess


@pytest.fixture
def guarded() -> AdminPort:
    """An admin port with tokens."""
    return AdminPort(AdminAccess(PLAIN, TOKENS))


@pytest.fixture
def unguarded() -> AdminPort:
    """An admin port that asks for none."""
    return AdminPort(AdminAccess())
