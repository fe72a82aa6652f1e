"""What several gateways know together: in Redis, where one is configured.

``settings`` and ``address`` say where it is, ``connect`` opens connections to it, ``health`` says when nobody should
wait for it, and ``seal`` keeps what is written from everybody else. ``context`` keeps blocks of conversations:
``waiting`` holds what is to be written, ``reads`` and ``writes`` talk to Redis. ``exchange`` is how gateways tell each
other what changes all the time, and ``records`` keeps what has to outlive them.
"""

from gateway.cluster.peer_channel import PeerChannel
from gateway.cluster.records import RedisRecords
from gateway.cluster.redis_context import RedisContextStore

__all__ = [
    "PeerChannel",
    "RedisContextStore",
    "RedisRecords",
]
