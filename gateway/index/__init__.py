"""Who holds which prefix."""

from gateway.index.replicas import ReplicaIndex

__all__ = ["ReplicaIndex"]
