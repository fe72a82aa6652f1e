"""Auxiliary calls to engines, and the rates learned from them."""

from typing import Protocol

from gateway.core.ids import ModelId, ReplicaId
from gateway.core.replica_state import Rates


class EngineUnavailable(Exception):
    """No replica of a model could answer an auxiliary call.

    Attributes:
        status: The engine's HTTP status, if it answered (403 and 404: the endpoint does not exist there).
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class EngineCaller(Protocol):
    """Auxiliary calls to any replica of a model."""

    async def ask(
        self, model: ModelId, path: str, body: bytes, timeout_seconds: float, regions: frozenset[str] = frozenset()
    ) -> bytes:
        """POST a JSON body to ``path`` of one routable replica and return the body of its 200 answer.

        Args:
            model: The model.
            path: Path at the engine.
            body: A JSON document.
            timeout_seconds: Limit for the whole call.
            regions: Only replicas in these regions are called; empty for all.

        Raises:
            EngineUnavailable: no replica is up, none answered in time, or the answer was not 200.
        """
        ...


class EngineReader(Protocol):
    """Reads pages of one engine."""

    async def read(self, replica: ReplicaId, path: str, timeout_seconds: float) -> bytes:
        """GET ``path`` of one replica and return the body of its 200 answer.

        Raises:
            EngineUnavailable: it did not answer in time, or not with 200.
        """
        ...


class RateLearner(Protocol):
    """Learns the rates of one replica from its answers."""

    @property
    def rates(self) -> Rates:
        """The present estimate."""
        ...

    def longest_first_content(self, prefill_tokens: int, *, streamed: bool) -> float:
        """Seconds to the first content of an answer behind so many tokens, rather too long than too short; infinite
        before the first few answers of the model's replicas."""
        ...

    def observe_first_token(self, prefill_tokens: int, seconds: float) -> None:
        """A first token arrived ``seconds`` after dispatch; ``prefill_tokens`` were prefilled meanwhile."""
        ...

    def observe_decode(self, completion_tokens: int, seconds: float) -> None:
        """``completion_tokens`` after the first took ``seconds``."""
        ...

    def observe_request(self, prefill_tokens: int, completion_tokens: int, seconds: float, *, streamed: bool) -> None:
        """A whole request took ``seconds``."""
        ...
