"""Authentication and rate limits.

In: request headers and the peer's address. Out: a ``Caller`` and an admission to the tenant's limits. Start with
``callers``, which authenticates by API key, trusted proxy or open mode; ``tenant_limits`` counts, and
``application_limits`` counts for the application that a request names, which ``prompt_registry`` knows.
"""

from gateway.admission.application_limits import ApplicationLimits
from gateway.admission.callers import Admission, Authenticator
from gateway.admission.tenant_limits import Limits

__all__ = ["Admission", "ApplicationLimits", "Authenticator", "Limits"]
