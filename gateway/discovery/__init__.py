"""Discovery of replicas by DNS, Kubernetes or a file.

In: the ``discover`` settings of each model. Out: the list of its replicas, whenever it may have changed. Start with
``discovery``; each kind of source is a module. ``EmptyGuard`` in ``discovered`` delays the use of empty answers.
"""

from gateway.discovery.discovered import Condition, DiscoveredReplica
from gateway.discovery.discovery import Discovery

__all__ = ["Condition", "DiscoveredReplica", "Discovery"]
