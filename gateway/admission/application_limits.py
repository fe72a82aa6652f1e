"""Limits of applications, beside those of the tenants that send their requests.

A request of an application with limits counts against both, and each may refuse it. A request that one of them refuses
uses up nothing of the other, and counts as refused of its tenant. Usage is that of one gateway.
"""

from collections.abc import Iterable, Mapping, Sequence

from gateway.admission.callers import Admission
from gateway.admission.tenant_limits import AllLimits, Limits
from gateway.core.application import Application
from gateway.core.errors import RateLimited
from gateway.core.tenant import Caller


class ApplicationLimits:
    """Usage of the limits of applications. Synchronous, without I/O.

    Args:
        limits: Limits by the id of a registered prompt; those without limits are left out.
    """

    def __init__(self, limits: Mapping[str, Limits]) -> None:
        self._limited = frozenset(limits)
        self._all = AllLimits(limits, None, whose="application")

    def replace(self, limits: Mapping[str, Limits]) -> None:
        """Put other limits in force; remaining applications keep their usage."""
        self._limited = frozenset(limits)
        self._all.replace(limits, None)

    def admit(self, of_tenant: Admission, application: Application, now: float) -> "Admission | JointAdmission":
        """Count an admitted request against the limits of its application, too.

        Args:
            of_tenant: Its admission under its tenant's limits.
            application: The application.
            now: Monotonic seconds.

        Returns:
            The admission under both; ``of_tenant`` itself if the application has no limits.

        Raises:
            RateLimited: the application has no request left; of the tenant the request counts as refused only.
        """
        if not application.registered or application.id not in self._limited:
            return of_tenant
        try:
            state = self._all.admit(application.id, now)
        except RateLimited:
            of_tenant.withdraw(now)
            raise
        of_application = Admission(of_tenant.caller, state.counts_tokens, application.id, self._all, state, now)
        return JointAdmission(of_tenant, of_application)


class JointAdmission:
    """A request admitted under the limits of a tenant and of an application; implements ``ports.Grant``."""

    __slots__ = ("_of_application", "_of_tenant")

    def __init__(self, of_tenant: Admission, of_application: Admission) -> None:
        self._of_tenant = of_tenant
        self._of_application = of_application

    @property
    def caller(self) -> Caller:
        """See ``ports.Grant.caller``."""
        return self._of_tenant.caller

    @property
    def counts_tokens(self) -> bool:
        """See ``ports.Grant.counts_tokens``."""
        return self._of_tenant.counts_tokens or self._of_application.counts_tokens

    def charge(self, prompt_tokens: int, now: float) -> None:
        """See ``ports.Grant.charge``."""
        tenant, application = self._of_tenant, self._of_application
        # What a tenant's limit refuses does not count at an application, which others use, too.
        for one, other, refused in ((tenant, application, None), (application, tenant, now)):
            try:
                one.charge(prompt_tokens, now)
            except RateLimited:
                other.withdraw(refused)
                raise

    def correct(self, prompt_tokens: int) -> None:
        """See ``ports.Grant.correct``."""
        self._of_tenant.correct(prompt_tokens)
        self._of_application.correct(prompt_tokens)

    def refuse(self, now: float) -> None:
        """See ``ports.Grant.refuse``."""
        self._of_tenant.refuse(now)
        self._of_application.correct(0)

    def headers(self, now: float) -> Sequence[tuple[bytes, bytes]]:
        """See ``ports.Grant.headers``. Of a limit that both have, the one with less left is shown."""
        return _tighter(self._of_tenant.headers(now), self._of_application.headers(now))

    def release(self) -> None:
        """See ``ports.Grant.release``."""
        self._of_tenant.release()
        self._of_application.release()


_KINDS = (b"-requests", b"-tokens")
_REMAINING = b"x-ratelimit-remaining"


def _tighter(one: Sequence[tuple[bytes, bytes]], other: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
    """The rate-limit headers of two limits: for requests, and for tokens, those of the limit with less left."""
    chosen: list[tuple[bytes, bytes]] = []
    for kind in _KINDS:
        found = [[(name, value) for name, value in headers if name.endswith(kind)] for headers in (one, other)]
        chosen += min((each for each in found if each), key=_remaining, default=[])
    return chosen


def _remaining(headers: Iterable[tuple[bytes, bytes]]) -> int:
    return next((int(value) for name, value in headers if name.startswith(_REMAINING)), 0)
