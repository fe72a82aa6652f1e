"""What differs between the engines on the HTTP side, and the Prometheus text format of their metrics."""

from collections.abc import Sequence as Several
from typing import Any, Protocol

from gateway.simulator.call import EngineError, Routes
from gateway.simulator.engine_scheduler import Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """Collects the samples of one scrape."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, kind: str, text: str, value: float, **labels: object) -> None:
        """Add a sample. The first one of a name declares its type: ``kind`` is gauge or counter."""
        lines = self._families.setdefault(name, [f"# HELP {name} {text}", f"# TYPE {name} {kind}"])
        labelled = ",".join(f'{label}="{_escaped(str(value))}"' for label, value in labels.items())
        lines.append(f"{name}{{{labelled}}} {float(value)}" if labelled else f"{name} {float(value)}")

    def text(self) -> str:
        """The whole page."""
        return "".join(f"{line}\n" for lines in self._families.values() for line in lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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
