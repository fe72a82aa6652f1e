"""Admits requests: authenticates the caller, and counts the request against the tenant's limits."""

from collections.abc import Sequence

from gateway.admission.all_limits import AllLimits
from gateway.admission.callers import Callers
from gateway.admission.replicated_limits import ReplicatedLimits
from gateway.admission.tenant_limits import Limits, TenantLimits, TokenShare
from gateway.config.tenants_settings import AdmissionSettings, TenantSettings, is_open
from gateway.core.errors import RateLimited
from gateway.core.tenant import ANYBODY, DEFAULT_TENANT, Caller, PersonalDataMode, Tenant


class Admission:
    """An admitted request; implements ``ports.Grant``."""

    __slots__ = ("_admitted", "_all", "_released", "_share", "_state", "caller")

    def __init__(self, caller: Caller, all_limits: AllLimits, state: TenantLimits, admitted: float) -> None:
        self.caller = caller
        self._all = all_limits
        self._state = state
        self._admitted: float | None = admitted
        self._share: TokenShare | None = None
        self._released = False

    def charge(self, prompt_tokens: int, now: float) -> None:
        """See ``ports.Grant.charge``. A refused request no longer counts in its window of requests."""
        before, self._share = self._share, None
        if before is not None:
            before.correct(0)
        try:
            self._share = self._state.charge(prompt_tokens, self._admitted, now)
        except RateLimited:
            self._admitted = None
            raise

    def correct(self, prompt_tokens: int) -> None:
        """See ``ports.Grant.correct``."""
        if self._share is not None:
            self._share.correct(prompt_tokens)

    def headers(self, now: float) -> Sequence[tuple[bytes, bytes]]:
        """See ``ports.Grant.headers``."""
        return self._state.headers(now)

    def release(self) -> None:
        """See ``ports.Grant.release``."""
        if not self._released:
            self._released = True
            self._all.release(self.caller.tenant.id, self._state)


class Authenticator:
    """Authenticates clients and enforces their limits. Synchronous, without I/O.

    Args:
        tenants: Settings of the tenants.
        admission: Settings of trusted proxies.
        personal_data: Default mode of tenants.
    """

    def __init__(
        self,
        tenants: Sequence[TenantSettings],
        admission: AdmissionSettings,
        *,
        personal_data: PersonalDataMode = PersonalDataMode.REPORT,
    ) -> None:
        self._callers = Callers(tenants, admission, personal_data)
        self._limits = AllLimits(*_limits(tenants, admission))
        self.shared = ReplicatedLimits(self._limits)
        """Replicates the usage to and from other gateways."""

    def replace(
        self,
        tenants: Sequence[TenantSettings],
        admission: AdmissionSettings,
        *,
        personal_data: PersonalDataMode = PersonalDataMode.REPORT,
    ) -> None:
        """Replace the settings for the next requests. Remaining tenants keep their usage.

        Requests that are already admitted are not affected.
        """
        self._callers = Callers(tenants, admission, personal_data)
        self._limits.replace(*_limits(tenants, admission))

    def identify(self, headers: Sequence[tuple[bytes, bytes]], peer: str, wall: float) -> Caller:
        """Authenticate a request without counting it against a limit.

        Args:
            headers: The request's, names in lower case.
            peer: Address that the connection comes from; empty if unknown.
            wall: Unix seconds.

        Raises:
            Unauthorized, Forbidden, BadRequest: the error to send to the client.
        """
        return self._callers.identify(headers, peer, wall)

    def admit(self, headers: Sequence[tuple[bytes, bytes]], peer: str, wall: float, now: float) -> Admission:
        """As ``identify``, and count the request against the tenant's limits; ``now`` is monotonic seconds.

        Raises:
            Unauthorized, Forbidden, BadRequest: the error to send to the client.
            RateLimited: the tenant has no request left.
        """
        caller = self._callers.identify(headers, peer, wall)
        try:
            state = self._limits.admit(caller.tenant.id, now)
        except RateLimited as refusal:
            refusal.caller = caller
            raise
        return Admission(caller, self._limits, state, now)

    def tenant(self, tenant: str) -> Tenant | None:
        """The tenant with this id; None if there is none."""
        return self._callers.tenant(tenant)


def _limits(tenants: Sequence[TenantSettings], admission: AdmissionSettings) -> tuple[dict[str, Limits], Limits | None]:
    """Limits of each tenant with an entry, and of the others."""
    listed = {entry.id: Limits.of(entry) for entry in tenants}
    unlisted = listed.pop(ANYBODY, None)
    if is_open(tenants, admission):
        listed.setdefault(DEFAULT_TENANT, Limits())
    return listed, unlisted
