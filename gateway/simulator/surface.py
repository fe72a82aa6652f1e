"""What differs between the engines on the HTTP side."""

from collections.abc import Sequence as Several
from typing import Any, Protocol

from gateway.simulator.call import Routes
from gateway.simulator.engine_errors import EngineError
from gateway.simulator.engine_scheduler import Sequence

Json = dict[str, Any]


class Surface(Protocol):
    """One engine's own endpoints and formats."""

    @property
    def owner(self) -> str:
        """Who owns a model, in the list of models."""
        ...

    @property
    def root(self) -> str:
        """The ``root`` of a model in the list of models."""
        ...

    @property
    def continuous_cached(self) -> bool:
        """Whether usage in each chunk of a stream reports the cached tokens too."""
        ...

    def routes(self) -> Routes:
        """The endpoints that only this engine has."""
        ...

    def metrics(self) -> str:
        """All metrics of the engine, in the Prometheus text format."""
        ...

    def error(self, error: EngineError) -> Json:
        """The body of a refusal."""
        ...

    def cached_tokens(self, sequences: Several[Sequence], n: int) -> int | None:
        """Cached tokens in usage; None: not reported.

        Args:
            sequences: One per answer, in order: prompt by prompt.
            n: Answers for each prompt.
        """
        ...
