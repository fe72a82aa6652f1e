"""One HTTP request, as endpoints receive it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import orjson

from gateway.simulator.answer_writer import ReplyWriter
from gateway.simulator.engine_errors import EngineError


@dataclass(frozen=True, slots=True)
class Call:
    """A request and where its answer goes.

    Attributes:
        headers: Names in lower case.
        query: The raw query string.
        body: The raw bytes.
        reply: Where the answer goes.
        request_id: The client's, or one made here.
    """

    headers: Mapping[bytes, bytes]
    query: bytes
    body: bytes
    reply: ReplyWriter
    request_id: str

    def fields(self) -> Mapping[str, Any]:
        """The body as JSON. Raises EngineError for anything but an object."""
        try:
            fields = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise EngineError(400, f"The body is no valid JSON: {error}") from error
        if not isinstance(fields, dict):
            raise EngineError(400, "The body must be a JSON object")
        return fields

    def rank(self) -> int | None:
        """The data-parallel rank that ``x-data-parallel-rank`` asks for; None if it is missing or not a number."""
        text = self.headers.get(b"x-data-parallel-rank", b"")
        try:
            return int(text)
        except ValueError:
            return None

    def parameter(self, name: str) -> str | None:
        """A query parameter."""
        found = parse_qs(self.query.decode("latin-1")).get(name)
        return found[0] if found else None


Handler = Callable[[Call], Awaitable[None]]
Routes = dict[tuple[str, str], Handler]
"""Handlers by method and path."""
