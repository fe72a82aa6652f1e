"""Protocols behind the admin port: orders of operators, and explanations of requests."""

from collections.abc import Mapping
from typing import Protocol

from gateway.core.experiment_group import ExperimentSample
from gateway.core.explanation import CacheEvent, RequestRecord


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
    def enabled(self) -> bool:
        """Whether requests are explained; if not, records are ignored."""
        ...

    @property
    def accepts_text(self) -> bool:
        """Whether body and tokens of a request can be stored; without them, ``RequestRecord`` has neither."""
        ...

    def record_request(self, record: RequestRecord) -> None:
        """A request was answered."""
        ...

    def record_sample(self, sample: ExperimentSample) -> None:
        """A request of the experiment is over."""
        ...

    def record_event(self, event: CacheEvent) -> None:
        """An event that changed a cache, such as a restart."""
        ...
