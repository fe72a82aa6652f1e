"""What several gateways know together: in Redis, where one is configured.

``settings`` and ``address`` say where it is, ``connect`` opens connections to it, ``health`` says when nobody should
wait for it, and ``seal`` keeps what is written from everybody else. ``context`` keeps blocks of conversations:
``waiting`` holds what is to be written, ``reads`` and ``writes`` talk to Redis. ``exchange`` is how gateways tell each
other what changes all the time, and ``records`` keeps what has to outlive them.
"""

from gateway.state.context import RedisContextStore
from gateway.state.exchange import Exchange
from gateway.state.records import RedisRecords
from gateway.state.settings import State

__all__ = ["Exchange", "RedisContextStore", "RedisRecords", "State"]
