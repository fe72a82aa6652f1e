"""Protocols behind the admin port: orders of operators, and explanations of requests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gateway.core.explanation import CacheEvent, RequestRecord
from gateway.core.space import SpaceEnd, SpaceSelection


class SpaceDesk(Protocol):
    """Lists and resets prefix spaces."""

    def shown(self) -> Iterable[Mapping[str, object]]:
        """All spaces, then the last ended epochs, JSON-ready and made one by one; as in ``GET /admin/api/spaces``."""
        ...

    async def reset(self, selection: SpaceSelection, by: str) -> Sequence[SpaceEnd]:
        """End the epochs of all spaces of a selection. Returns when a restart of the gateway cannot undo it.

        Args:
            selection: Which spaces.
            by: Id of the admin token, empty without one.

        Raises:
            BadRequest: it names a model or a tenant that does not exist.
        """
        ...


class FleetDesk(Protocol):
    """Drains replicas."""

    def drain(self, replica: str, *, on: bool) -> Mapping[str, object]:
        """Begin or end the drain of a replica; returns its new state, JSON-ready.

        Args:
            replica: Its id.
            on: Whether to drain it.

        Raises:
            NotFound: there is no such replica.
        """
        ...


class WarmDesk(Protocol):
    """Runs warm-up jobs."""

    def start(self, order: Mapping[str, object], by: str) -> Mapping[str, object]:
        """Begin to send declared prefixes; returns the job as ``job`` does.

        Args:
            order: The parsed body of ``POST /admin/api/warm``.
            by: Id of the admin token, empty without one.

        Raises:
            BadRequest: the order is invalid; message and param name the field.
        """
        ...

    def job(self, job: str) -> Mapping[str, object] | None:
        """The progress of a job, JSON-ready; None if it does not exist."""
        ...

    async def overview(self) -> Mapping[str, object]:
        """The declared prefixes and the last jobs, JSON-ready; as in ``GET /admin/api/warm``."""
        ...


class Explains(Protocol):
    """Explains requests asynchronously in another process. Must not raise and must not wait."""

    @property
    def accepts_text(self) -> bool:
        """Whether body and tokens of a request can be stored; without them, ``RequestRecord`` has neither."""
        ...

    def record_request(self, record: RequestRecord) -> None:
        """A request was answered."""
        ...

    def record_event(self, event: CacheEvent) -> None:
        """An event that changed a cache, such as a restart."""
        ...


class ExplainDesk(Protocol):
    """Answers questions about why tokens were computed again."""

    async def ask(self, question: str, arguments: Mapping[str, str]) -> bytes:
        """The answer as a JSON document.

        Args:
            question: ``summary``, ``reasons``, ``requests`` or ``request``: paths below ``/admin/api/``. Or ``tokens``,
                whose answer holds token ids and must not be shown: ``{"model", "equal_tokens", "before": [ids],
                "after": [ids], "first"}``, equal up to ``first``; ``null`` where there is nothing to compare. Or
                ``figures``, whose answer is for other gateways.
            arguments: The query's parameters; for ``request`` and ``tokens`` the request's ``id``.

        Raises:
            BadRequest: a parameter is wrong; message and param say how.
            NotFound: there is no such request in the journal.
            GatewayError: explanations are turned off, or their process does not answer.
        """
        ...
