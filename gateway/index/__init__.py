"""Who holds which prefix."""

from gateway.index.replicas import ReplicaIndex
from gateway.index.replicated_index import ReplicatedIndex

__all__ = ["ReplicaIndex", "ReplicatedIndex"]
