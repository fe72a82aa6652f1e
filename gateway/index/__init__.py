"""The prefix index: how many tokens of a prompt each target (replica and rank) holds in its cache.

In: KV events, dispatched requests, cached tokens reported by the engines. Out: ``Holding`` per target. No I/O, no
clock. Start with ``replicas``; ``event_holdings`` indexes events, ``predicted`` follows requests where there are no
events, and ``replicated_index`` exchanges requests with other gateways.
"""

from gateway.index.replicas import ReplicaIndex
from gateway.index.replicated_index import ReplicatedIndex

__all__ = ["ReplicaIndex", "ReplicatedIndex"]
