"""Where operators ask and order, and what explains requests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gateway.core.explanation import CacheEvent, RequestRecord
from gateway.core.space import SpaceEnd, SpaceSelection


class SpaceDesk(Protocol):
    """Where operators look at prefix spaces and end their lives."""

    def shown(self) -> Iterable[Mapping[str, object]]:
        """Every living space, then the last that ended, JSON-ready and made one by one; as in
        ``GET /admin/api/spaces``."""
        ...

    async def reset(self, selection: SpaceSelection, by: str) -> Sequence[SpaceEnd]:
        """End the lives of all spaces of a selection. Returns when no later start of the gateway can undo it.

        Args:
            selection: Which.
            by: Who asks: id of an admin token, empty without one.

        Raises:
            BadRequest: it names a model or a tenant that does not exist.
        """
        ...


class FleetDesk(Protocol):
    """Where operators take replicas out of use, and back."""

    def drain(self, replica: str, *, on: bool) -> Mapping[str, object]:
        """Have a replica drained, or take that back; returns how it then is, JSON-ready.

        Args:
            replica: Its id.
            on: Whether it is to get no more requests.

        Raises:
            NotFound: there is no such replica.
        """
        ...


class WarmDesk(Protocol):
    """Where operators have caches filled."""

    def start(self, order: Mapping[str, object], by: str) -> Mapping[str, object]:
        """Begin to send declared prefixes; returns the job as ``job`` does.

        Args:
            order: The parsed body of ``POST /admin/api/warm``.
            by: Who asks: id of an admin token, empty without one.

        Raises:
            BadRequest: the order is wrong; message and param say where.
        """
        ...

    def job(self, job: str) -> Mapping[str, object] | None:
        """How far a job is, JSON-ready; None if there is no such."""
        ...

    async def overview(self) -> Mapping[str, object]:
        """What the configuration declares and the last jobs, JSON-ready; as in ``GET /admin/api/warm``."""
        ...


class Explains(Protocol):
    """Somebody who explains requests, later and elsewhere. Must not raise and must not wait."""

    @property
    def wants_text(self) -> bool:
        """Whether body and tokens of a request can be stored; without them, ``RequestRecord`` has neither."""
        ...

    def finished(self, finished: RequestRecord) -> None:
        """A request was answered."""
        ...

    def happened(self, event: CacheEvent) -> None:
        """Something happened to what is cached."""
        ...


class ExplainDesk(Protocol):
    """Where operators ask why tokens were computed again."""

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
