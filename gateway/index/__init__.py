"""Who holds which prefix."""

from gateway.index.hot import HotPrefix, HotPrefixes
from gateway.index.replicas import ReplicaIndex
from gateway.index.shared import SharedIndex

__all__ = ["HotPrefix", "HotPrefixes", "ReplicaIndex", "SharedIndex"]
