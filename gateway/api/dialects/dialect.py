"""What an API has to say about itself to be translated.

A request becomes a chat request before it is parsed as one; its answer goes through a ``Sink`` that turns chat
completions into the API's own objects and events. Between the two only chat requests exist.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

import msgspec

from gateway.core.diagnosis import NamedRequest
from gateway.core.errors import GatewayError
from gateway.core.ids import RequestId
from gateway.core.ports import Sink
from gateway.core.tenant import Caller

_MESSAGE = re.compile(r"messages\[(\d+)\]")


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
        places: Where each chat message stands in the client's body, such as ``messages[2].content[0]`` or ``system``.
        names: The client's names of members that have other names in the chat request.
        answer: Runs around the answer, and gives the sink that translates it, in front of the client's.
        counts: Whether it only asks for the number of its prompt's tokens.
        compares: Id of the earlier request or answer to compare the prompt with; None if the client names none.
    """

    fields: dict[str, Any]
    places: Sequence[str]
    names: Mapping[str, str]
    answer: Callable[[AnswerClient], AbstractAsyncContextManager[Sink]]
    counts: bool = False
    compares: str | None = None


class ApiProblem(msgspec.Struct, frozen=True):
    """An error: the gateway's own, or an engine's.

    Attributes:
        status: HTTP status by which the chat API reports it.
        type: Its type there.
        message: One or two sentences for the person who reads the client's log.
        param: The member at fault, in the client's body; None for none.
        code: Machine-readable code; None for none.
    """

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None


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

    def refusal(self, problem: ApiProblem, request_id: RequestId) -> tuple[int, bytes]:
        """Status and body of an error in the API's shape."""
        ...


def problem_of(error: GatewayError, translated: Translated | None) -> ApiProblem:
    """An error of the gateway, with the names that the client's body has for what is at fault."""
    problem = ApiProblem(error.status, error.type, error.message, error.param, error.code)
    return problem if translated is None else problem_in(translated.places, translated.names, problem)


def problem_in(places: Sequence[str], names: Mapping[str, str], problem: ApiProblem) -> ApiProblem:
    """An error about the chat request, with the names that the client's body has for what is at fault.

    Args:
        places: As of ``Translated``.
        names: As of ``Translated``.
        problem: The error.
    """
    if problem.param is None:
        return problem
    own = place_in(places, names, problem.param)
    message = problem.message.replace(f"`{problem.param}`", f"`{own}`")
    return msgspec.structs.replace(problem, message=message, param=own)


def place_in(places: Sequence[str], names: Mapping[str, str], param: str) -> str:
    """Where the client's body has what the chat request has at ``param``."""
    end = len(param)
    while end > 0:  # the longest part of the path that has another name
        own, found = names.get(param[:end]), _MESSAGE.fullmatch(param, 0, end)
        if own is None and found is not None and int(found[1]) < len(places):
            own = places[int(found[1])]
            if not own.endswith("]"):  # a member that is the text itself, such as ``instructions``
                return own + param[end:].removeprefix(".content")
        if own is not None:
            return own + param[end:]
        end = max(param.rfind(".", 0, end), param.rfind("[", 0, end))
    return param


def named_request(header: bytes | None, translated: Translated | None) -> NamedRequest | None:
    """The earlier request to compare with: as the body names it, else the header ``x-gateway-explain``."""
    given = (translated is not None and translated.compares) or (header or b"").decode("latin-1")
    if translated is None or not given:
        return NamedRequest(given) if given else None
    return NamedRequest(given, tuple(translated.places), translated.names)
