"""Identifiers, each with a type of its own so that one cannot be passed for another."""

from typing import NamedTuple, NewType

ModelId = NewType("ModelId", str)
"""What clients send as ``model``."""

ReplicaId = NewType("ReplicaId", str)
"""Name of one engine replica: ``host:port`` unless the configuration gives an ``id``. Unique in the gateway."""

RequestId = NewType("RequestId", str)
"""The client's ``x-request-id``, or one made by the gateway."""

TenantId = NewType("TenantId", str)
"""Name of a tenant, as the configuration or a trusted proxy gives it."""

BlockHash = NewType("BlockHash", int)
"""Chained 64-bit hash of a prompt up to and including one block. It only steers routing."""


class Target(NamedTuple):
    """Where a request can be sent: one data-parallel rank of a replica. Each rank has a KV cache of its own.

    Attributes:
        replica: The replica.
        rank: The rank, 0 where there is only one.
    """

    replica: ReplicaId
    rank: int = 0
