"""What several gateways know together: in Redis, where one is configured.

``settings`` says where it is, ``health`` when nobody should wait for it, ``waiting`` holds what is to be written,
``reads`` and ``writes`` talk to it, ``seal`` keeps what is written from everybody else, and ``context`` is what the
rest of the gateway sees.
"""

from gateway.state.context import RedisContextStore
from gateway.state.settings import State

__all__ = ["RedisContextStore", "State"]
