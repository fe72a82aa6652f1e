"""What goes along with a request: who it is admitted for, where its answer goes, what it is traced by."""

from collections.abc import Sequence
from typing import Protocol

from gateway.core.decision import Decision
from gateway.core.outcome import Outcome
from gateway.core.settlement import Refusal, Settlement
from gateway.core.tenant import Caller, Tenant


class Sink(Protocol):
    """Where an answer goes: the client's connection."""

    @property
    def gone(self) -> bool:
        """Whether the client closed the connection."""
        ...

    @property
    def interrupted(self) -> bool:
        """Whether the answer has to be ended because the gateway is shutting down."""
        ...

    async def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send status and headers."""
        ...

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send a piece of the body; with ``more`` false it is the last one."""
        ...


class Trace(Protocol):
    """One request, as it is told to whoever collects traces. Must not raise and must not wait.

    Its clock runs from ``Tracer.begin``: a room begins where the one before ended.
    """

    def lap(self, room: str) -> None:
        """The request leaves a room."""
        ...

    def resume(self) -> None:
        """What went before belongs to no room."""
        ...

    def relay(self, decision: Decision, host: str, port: int) -> Sequence[tuple[bytes, bytes]] | None:
        """An attempt at a replica begins.

        Returns:
            Headers that go to the replica in place of the client's ``traceparent`` and ``tracestate``; None leaves
            those as they came.
        """
        ...

    def relayed(self, outcome: Outcome) -> None:
        """The attempt is over."""
        ...

    def settled(self, settlement: Settlement) -> None:
        """The request is over, and this is what is known of it."""
        ...

    def refused(self, refusal: Refusal) -> None:
        """The request was answered before it got anywhere."""
        ...

    def end(self) -> None:
        """Nothing more will come, whether or not the request was answered. Call once."""
        ...


class Tracer(Protocol):
    """Tells requests to whoever collects traces. Must not raise and must not wait."""

    def begin(self, headers: Sequence[tuple[bytes, bytes]]) -> Trace:
        """A request has come.

        Args:
            headers: Its headers, names in lower case.
        """
        ...


class Grant(Protocol):
    """What a request was admitted with: who asks, and its share of the tenant's limits."""

    @property
    def caller(self) -> Caller:
        """On whose behalf it comes."""
        ...

    def charge(self, prompt_tokens: int, now: float) -> None:
        """Count the prompt's tokens against the tenant's limit, in place of what was charged for it before.

        Args:
            prompt_tokens: How many; an estimate before they are counted, and where there is no tokenizer.
            now: Monotonic seconds.

        Raises:
            RateLimited: they do not fit; nothing is counted for the request any more.
        """
        ...

    def correct(self, prompt_tokens: int) -> None:
        """The engine counted the prompt's tokens; 0 if it never computed them. Call at most once."""
        ...

    def headers(self, now: float) -> Sequence[tuple[bytes, bytes]]:
        """The rate-limit headers of the answer; none for a tenant without limits."""
        ...

    def release(self) -> None:
        """The request is over, however it ended. May be repeated."""
        ...


class Gate(Protocol):
    """Decides who may ask, and how much. Synchronous, without I/O."""

    def identify(self, headers: Sequence[tuple[bytes, bytes]], peer: str, wall: float) -> Caller:
        """Who asks; counts against no limit.

        Args:
            headers: The request's, names in lower case.
            peer: Address that the connection comes from; empty if unknown.
            wall: Unix seconds.

        Raises:
            Unauthorized, Forbidden, BadRequest: what the client should be told.
        """
        ...

    def admit(self, headers: Sequence[tuple[bytes, bytes]], peer: str, wall: float, now: float) -> Grant:
        """As ``identify``, and takes a request's share of the tenant's limits; ``now`` is monotonic seconds.

        Raises:
            Unauthorized, Forbidden, BadRequest: what the client should be told.
            RateLimited: the tenant has no request left.
        """
        ...

    def tenant(self, tenant: str) -> Tenant | None:
        """The tenant of a name; None if there is none."""
        ...
