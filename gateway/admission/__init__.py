"""Authentication and rate limits.

In: request headers and the peer's address. Out: a ``Caller`` and an admission to the tenant's limits. Start with
``callers``, which authenticates by API key, trusted proxy or open mode; ``tenant_limits`` counts.
"""

from gateway.admission.callers import Authenticator

__all__ = [
    "Authenticator",
]
