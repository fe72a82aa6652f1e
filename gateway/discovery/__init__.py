"""Find the replicas that the configuration does not name.

``sources`` asks DNS, Kubernetes or a file, ``belief`` says which of their answers counts, ``follower`` asks again and
again, and ``discovery`` is what the rest of the gateway sees. What becomes of it is not decided here.
"""

from gateway.discovery.discovered import Condition, DiscoveredReplica
from gateway.discovery.discovery import Discovery

__all__ = ["Condition", "DiscoveredReplica", "Discovery"]
