"""Reads requests from a file: one JSON body, or one a line."""

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.core.request import Endpoint
from gateway.evaluation.bad_input import BadInput

_MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RequestInFile:
    """One request.

    Attributes:
        place: The file, with the line if it holds several requests.
        fields: The body, parsed: an object with ``messages`` or ``prompt``.
        text: The body as it stands in the file.
    """

    place: str
    fields: Mapping[str, Any]
    text: str

    @property
    def endpoint(self) -> Endpoint:
        """The API that the body is for."""
        return Endpoint.CHAT if "messages" in self.fields else Endpoint.COMPLETIONS


def read_requests(file: str) -> Sequence[RequestInFile]:
    """The requests of a file; ``-`` is standard input.

    Raises:
        BadInput: it cannot be read, or holds something that is no request.
    """
    name = "standard input" if file == "-" else file
    text = _text(file, name)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise BadInput(f"{name}: empty; expected the JSON of a request to /v1/chat/completions")
    if len(lines) > 1 and _is_json(lines[0][1]):
        return [_request(f"{name}:{number}", line) for number, line in lines]
    return [_request(name, text)]


def _text(file: str, name: str) -> str:
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
            content = source.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{name}: cannot be read: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise BadInput(f"{name}: larger than {_MAX_BYTES:,} bytes, the most that is read (take some of it)")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: not UTF-8: invalid byte at offset {error.start}") from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _request(place: str, text: str) -> RequestInFile:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise BadInput(f"{place}: not valid JSON: {error}") from None
    except RecursionError:
        raise BadInput(f"{place}: nested too deep") from None
    if not isinstance(body, dict) or not body.keys() & {"messages", "prompt"}:
        raise BadInput(
            f"{place}: not a request: expected a JSON object with `messages`, as it is sent to /v1/chat/completions"
        )
    return RequestInFile(place, body, text)
