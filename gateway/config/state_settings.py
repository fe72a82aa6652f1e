"""Where shared state is kept: the value of the top-level key ``state``."""

from typing import Annotated

from pydantic import AfterValidator, SecretStr

from gateway.config.redis_address import read_address

MEMORY = "memory"
"""The value that means: in this process, and nowhere else."""


def _where(state: SecretStr | None) -> SecretStr | None:
    """The URL; None for the gateway's own memory.

    Raises:
        ValueError: it is neither.
    """
    if state is None or state.get_secret_value() == MEMORY:
        return None
    read_address(state.get_secret_value())
    return state


State = Annotated[SecretStr | None, AfterValidator(_where)]
"""Type of the setting: the URL of a Redis, secret because of its password; None for the gateway's own memory."""
