"""What differs between the engines on the HTTP side."""

from collections.abc import Sequence as Several
from typing import Any, Protocol

from gateway.simulator.call import Routes
from gateway.simulator.engine_errors import EngineError
from gateway.simulator.engine_scheduler import Sequence

Json = dict[str, Any]


class Surface(Protocol):
    """One engine's own endpoints and shapes."""

    @property
    def owner(self) -> str:
        """Who owns a model, in the list of models."""
        ...

    @property
    def root(self) -> str:
        """What the list of models tells as the model's ``root``."""
        ...

    @property
    def continuous_cached(self) -> bool:
        """Whether usage in each chunk of a stream tells the cached tokens, too."""
        ...

    def routes(self) -> Routes:
        """The endpoints that only this engine has."""
        ...

    def metrics(self) -> str:
        """Everything that the engine counts, in the Prometheus text format."""
        ...

    def error(self, error: EngineError) -> Json:
        """The body of a refusal."""
        ...

    def cached_tokens(self, sequences: Several[Sequence], n: int) -> int | None:
        """What usage tells as cached tokens; None: nothing.

        Args:
            sequences: One per answer, in order: prompt by prompt.
            n: Answers for each prompt.
        """
        ...
