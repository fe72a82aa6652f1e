"""What an API has to say about itself to be translated.

A request becomes a chat request before it is parsed as one; its answer goes through a ``Sink`` that turns chat
completions into the API's own objects and events. Between the two only chat requests exist.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from gateway.core.client_places import ClientPlaces
from gateway.core.errors import GatewayError
from gateway.core.ids import RequestId
from gateway.core.ports import Sink
from gateway.core.tenant import Caller


class DialectRequest(NamedTuple):
    """A request of such an API.

    Attributes:
        fields: Its body parsed; only to be read.
        headers: The last header of each name, names in lower case.
        request_id: Its id.
        caller: Who sent it.
        hold: Called with the memory that its translation takes besides; its exceptions end it.
    """

    fields: Mapping[str, Any]
    headers: Mapping[bytes, bytes]
    request_id: RequestId
    caller: Caller
    hold: Callable[[int], None] = lambda _size: None


class AnswerClient(Sink, Protocol):
    """The client's sink, which an answer may do without."""

    def detach(self) -> None:
        """The answer goes on if the client disconnects."""
        ...

    def respond(self, error: GatewayError) -> None:
        """Answer with an error."""
        ...

    def cancel(self) -> None:
        """End the answer, as if its client had disconnected."""
        ...


class Translated(NamedTuple):
    """A request as a chat request.

    Attributes:
        fields: The chat request.
        places: Where the client's body has what it has.
        answer: Runs around the answer, and gives the sink that translates it, in front of the client's.
        counts: Whether it only asks for the number of its prompt's tokens.
        compares: See ``ChatRequest``.
    """

    fields: dict[str, Any]
    places: ClientPlaces
    answer: Callable[[AnswerClient], AbstractAsyncContextManager[Sink]]
    counts: bool = False
    compares: str | None = None


class Dialect(Protocol):
    """One API.

    Attributes:
        name: Its name in logs, metrics and traces.
    """

    name: str

    async def translate(self, asked: DialectRequest) -> Translated:
        """The request as a chat request.

        Raises:
            GatewayError: the request violates the API, or names something that is not known here.
        """
        ...

    def refusal(self, error: GatewayError, request_id: RequestId) -> tuple[int, bytes]:
        """Status and body of an error in the API's shape: the gateway's own, or an ``EngineProblem``."""
        ...
