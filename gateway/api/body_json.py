"""The JSON of a body: joined and parsed at once if it is short, else in a thread and in portions; and the errors of
what is no JSON."""

import asyncio
import codecs
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import lru_cache
from typing import Any

import orjson

from gateway.core.errors import BadRequest
from gateway.core.json_portions import (
    MAX_TEXT_BYTES,
    PORTION,
    InvalidJson,
    JsonCounts,
    JsonLimits,
    TooMuchJson,
    built,
    lenient,
    scanned,
    upper_bounds,
)
from gateway.core.portions import Portioned

SHORT_BYTES = 1024 * 1024
_SHORT_VALUES = 20_000
"""A body up to this size, with no more brackets, colons and commas, is parsed at once, which takes some 10 ms at
most; all others are parsed in portions."""

LONG = object()
"""Stands for the value of a body that is parsed in portions."""

_VALUE_BYTES = 64
_CONTAINER_BYTES = 128
"""Memory of a parsed number, name or short string, and of a list or object, including its slot in the container."""


def fits(counts: JsonCounts, limits: JsonLimits) -> bool:
    """Whether JSON with at most these counts exceeds no limit but the depth."""
    return (
        counts.containers <= limits.containers and counts.members <= limits.members and counts.values <= limits.values
    )


def _weight(body: bytes, counts: JsonCounts) -> int:
    """Estimated memory of a parsed body. Texts take as much as in the body; with characters beyond ASCII up to four
    times as much, usually twice."""
    texts = len(body) if body.isascii() else 2 * len(body)
    return texts + _VALUE_BYTES * (counts.values + counts.members) + _CONTAINER_BYTES * counts.containers


@lru_cache(maxsize=16)
def _short_values(limits: JsonLimits) -> int:
    """Colons, commas and brackets with which a body is parsed at once: it exceeds no limit but the depth."""
    return min(_SHORT_VALUES, limits.containers, limits.members, limits.values)


async def joined(parts: Sequence[bytes], executor: Executor) -> bytes:
    """A body of its parts. Copying a long one takes milliseconds, in which its thread does not hold the interpreter."""
    if sum(map(len, parts)) <= SHORT_BYTES:
        return b"".join(parts)
    return await asyncio.get_running_loop().run_in_executor(executor, b"".join, parts)


def parsed_at_once(body: bytes, limits: JsonLimits, hold: Callable[[int], None]) -> Any:
    """The value of a short body; ``LONG`` for any other.

    Args:
        body: The body.
        limits: Limits of its size and depth.
        hold: Called with the memory that the parsed body takes, before it is parsed. Its exceptions end the parsing.

    Raises:
        BadRequest: it is nested too deep.
        InvalidJson: it is not JSON.
    """
    if len(body) > SHORT_BYTES:
        return LONG
    most = upper_bounds(body)
    if most.members + most.values > _short_values(limits):
        return LONG
    hold(_weight(body, most))
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        try:
            fields = lenient(body)
        except RecursionError:
            raise _too_deep(limits.depth) from None
        except ValueError:
            raise InvalidJson(str(error)) from None
    # Every level opens with a bracket: most bodies have too few of them to be too deep.
    if most.containers > limits.depth and isinstance(fields, (dict, list)) and _deeper_than(fields, limits.depth):
        raise _too_deep(limits.depth)
    return fields


def parsed_in_portions(body: bytes, limits: JsonLimits, hold: Callable[[int], None]) -> Portioned[Any]:
    """The value of a large body.

    Args:
        body: The body.
        limits: Limits of its size and depth.
        hold: As for ``parsed_at_once``.

    Raises:
        BadRequest: it exceeds a limit.
        InvalidJson: it is not JSON.
    """
    yield
    try:
        structure = yield from scanned(body, limits)
        hold(_weight(body, structure.counts))
        return (yield from built(body, structure))
    except TooMuchJson as error:
        raise too_much(error.kind, limits, "The body", "Send fewer messages, parts or tools.") from None


def body_of(fields: Any) -> bytes:
    """A body as JSON. Numbers beyond 64 bits and half surrogate pairs are written as Python's ``json`` does."""
    try:
        return orjson.dumps(fields)
    except (orjson.JSONEncodeError, RecursionError):
        return json.dumps(fields, separators=(",", ":")).encode()


def too_much(kind: str, limits: JsonLimits, where: str, fix: str, param: str | None = None) -> BadRequest:
    """The error for JSON that exceeds a limit."""
    if kind == "depth":
        return _too_deep(limits.depth)
    if kind == "text":
        return BadRequest(
            f"{where} holds a string that takes more than {MAX_TEXT_BYTES} bytes of memory. One character beyond"
            " U+FFFF, such as an emoji, makes every character of its string take four: send the text in several parts.",
            param=param,
            code="text_too_long",
        )
    most = {
        "containers": f"{limits.containers} objects and lists",
        "members": f"{limits.members} members of objects (server.max_json_members)",
        "values": f"{limits.values} values (server.max_json_values)",
    }
    return BadRequest(f"{where} holds more than {most[kind]}. {fix}", param=param, code="too_many_values")


def unreadable(body: bytes, text: str, max_depth: int) -> Portioned[BadRequest]:
    """The error for a body that is not JSON; ``text`` is the parser's message."""
    if not body:
        return BadRequest("The body is empty; it must be a JSON object.", code="invalid_json")
    if "depth limit" in text:
        return _too_deep(max_depth)
    offset = yield from _invalid_byte(body)
    if offset is not None:
        return BadRequest(f"The body is not UTF-8: invalid byte at offset {offset}.", code="invalid_utf8")
    if "surrogate" in text or "hex escape" in text:
        return BadRequest(
            f"The body holds half of a surrogate pair (\\ud800 to \\udfff alone), which is no character: {text}",
            code="invalid_unicode",
        )
    return BadRequest(f"The body is not valid JSON: {text}", code="invalid_json")


def _invalid_byte(body: bytes) -> Portioned[int | None]:
    """Offset of the first byte that is not UTF-8; None if all of them are."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(body), PORTION):
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(body[start : start + PORTION], final=start + PORTION >= len(body))
        except UnicodeDecodeError as error:
            return start - pending + error.start
        if start:
            yield
    return None


def _too_deep(limit: int) -> BadRequest:
    return BadRequest(f"The body is nested deeper than {limit} levels.", code="nesting_too_deep")


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True
