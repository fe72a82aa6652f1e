"""Who holds which prefix."""

from gateway.index.hot import HotPrefix, HotPrefixes
from gateway.index.replicas import ReplicaIndex

__all__ = ["HotPrefix", "HotPrefixes", "ReplicaIndex"]
