"""Protocols behind the admin port: orders of operators."""

from collections.abc import Mapping
from typing import Protocol


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
