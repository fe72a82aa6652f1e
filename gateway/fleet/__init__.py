"""The replicas of every model: health, load, draining, and which of them can take a request.

In: settings, discovered replicas, health checks, metrics and outcomes of requests. Out: routable replicas with their
load. Start with ``replica`` and ``fleet``; ``membership`` adds and removes replicas, ``health`` checks them.
"""
