"""The replicas of every model: health, load, draining, and which of them can take a request.

In: settings, health checks and outcomes of requests. Out: routable replicas. Start with ``replica`` and ``fleet``.
"""
