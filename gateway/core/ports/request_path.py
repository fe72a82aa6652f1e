"""Protocols along the path of a request: admission, the answer's sink."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.core.tenant import Caller


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

    @property
    def congested(self) -> bool:
        """Whether the client reads more slowly than is written."""
        ...

    def on_writable(self, callback: Callable[[], None]) -> None:
        """Call back once when ``congested`` ends. Not called if the client disconnects before."""
        ...

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Send status and headers, together with the first piece of the body."""
        ...

    def write(self, data: bytes, *, more: bool, chunk: bytes | None = None) -> None:
        """Send a piece of the body. Does nothing if the client is gone.

        Args:
            data: The piece; may be empty.
            more: Whether others follow.
            chunk: The same as one chunk of HTTP/1.1, if it came so; only with ``more``, and never empty.
        """
        ...


class Grant(Protocol):
    """The admission of a request: its caller, and its share of the tenant's limits."""

    @property
    def caller(self) -> Caller:
        """The authenticated caller."""
        ...

    @property
    def counts_tokens(self) -> bool:
        """Whether the tenant's prompt tokens are limited; if not, charges have no effect."""
        ...

    def charge(self, prompt_tokens: int, now: float) -> None:
        """Count the prompt's tokens against the tenant's limit, replacing an earlier charge.

        Args:
            prompt_tokens: Their number; an estimate before encoding and without a tokenizer.
            now: Monotonic seconds.

        Raises:
            RateLimited: they exceed the limit; nothing is counted for the request any more.
        """
        ...

    def correct(self, prompt_tokens: int) -> None:
        """Replace the charge by the engine's token count; 0 if it never computed them. Call at most once."""
        ...

    def refuse(self, now: float) -> None:
        """Give back the charge of a request refused for its content, or left by its client before it was computed. It
        counts as refused, unless requests are counted. Idempotent."""
        ...

    def headers(self, now: float) -> Sequence[tuple[bytes, bytes]]:
        """The rate-limit headers of the answer; none for a tenant without limits."""
        ...

    def release(self) -> None:
        """The request is over. Idempotent."""
        ...
