"""From body bytes to a ``ChatRequest``.

Only what the gateway itself needs is checked: model, the prompt's outer form, ``stream``. Everything else is the
engine's to judge, and its answer passes through; a second, stricter parser in front would refuse what a newer engine
accepts.
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

import orjson

from gateway.api.numbers import check_numbers
from gateway.values.errors import BadRequest, NotFound
from gateway.values.ids import ModelId, RequestId
from gateway.values.numbers import MOST_SEQUENCES
from gateway.values.request import ChatRequest, Endpoint
from gateway.values.tenant import Caller

_MOST_CONTAINERS = 100_000
"""Objects and lists in a body. A long conversation with tools has some thousands; 16 MiB could hold millions, and cost
seconds in which nobody else is served, and a gigabyte."""

_MOST_PROMPTS = 4096
"""Prompts in one request. Each is looked up and placed by itself."""

# Possessive, and matched from one to the next, so that no text makes it look at anything twice.
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+[\[\]{}]', re.DOTALL)
_OPENING = frozenset(b"[{")

_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")

_TIMEOUT_HEADER = b"x-request-timeout"
_SECONDS = re.compile(rb"\d{1,9}(\.\d{1,9})?")


def parse_request(
    endpoint: Endpoint,
    query: bytes,
    body: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    *,
    models: Collection[str],
    max_depth: int,
    request_id: RequestId,
    session: str | None,
    received_at: float,
    caller: Caller,
    peer: str,
    max_sequences: int = MOST_SEQUENCES,
) -> ChatRequest:
    """Parse and check a body.

    Raises:
        BadRequest: it is not what the API wants; message, param and code say what and how to mend it.
        NotFound: the model is unknown.
    """
    fields = _object(body, max_depth)
    models = [model for model in models if caller.may_use(model)]
    model = fields.get("model")
    if not isinstance(model, str):
        raise BadRequest(
            "`model` is missing: name one of " + known_models(models) if model is None else "`model` must be a string.",
            param="model",
            code="missing_required_parameter" if model is None else "invalid_type",
        )
    if model not in models:
        raise unknown_model(model, models)
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _wrong_type("stream", "a boolean")
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise _wrong_type("stream_options", "an object")
    if endpoint is Endpoint.CHAT:
        _check_messages(fields)
    else:
        _check_prompt(fields)
    check_numbers(endpoint, fields, max_sequences)
    return ChatRequest(
        endpoint=endpoint,
        query=query,
        body=body,
        fields=fields,
        headers=headers,
        model=ModelId(model),
        stream=bool(stream),
        usage_wanted=bool(options and options.get("include_usage")),
        request_id=request_id,
        session=session,
        received_at=received_at,
        caller=caller,
        peer=peer,
        timeout_seconds=_timeout(headers),
    )


def unknown_model(model: str, known: Collection[str]) -> NotFound:
    """What a client is told that asks for a model which does not exist, or which it may not use: the same.

    Args:
        model: What it asked for.
        known: The models it may use.
    """
    return NotFound(
        f"The model {_shown(model)} does not exist here, or may not be used with this key. Known models:"
        f" {known_models(known)}.",
        param="model",
        code="model_not_found",
    )


def known_models(models: Collection[str]) -> str:
    """Models as a list to read."""
    return ", ".join(models) or "none"


def _timeout(headers: Sequence[tuple[bytes, bytes]]) -> float | None:
    value = next((value for name, value in headers if name == _TIMEOUT_HEADER), None)
    if value is None:
        return None
    # No exponents, infinities or underscores, which float() would take.
    if not _SECONDS.fullmatch(value.strip()) or not (seconds := float(value)):
        raise BadRequest(
            "`x-request-timeout` must be a number of seconds above 0, such as 30 or 2.5, not"
            f" {_shown(value.decode('latin-1'))}.",
            param="x-request-timeout",
            code="invalid_header",
        )
    return seconds


def _object(body: bytes, max_depth: int) -> dict[str, Any]:
    brackets = body.count(b"{") + body.count(b"[")
    if brackets > _MOST_CONTAINERS:
        _check_containers(body, max_depth)
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        fields = _lenient(body, error, max_depth)
    if not isinstance(fields, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    # Every level opens with a bracket: most bodies have too few of them to be too deep.
    if brackets > max_depth and _deeper_than(fields, max_depth):
        raise _too_deep(max_depth)
    return fields


def _lenient(body: bytes, error: orjson.JSONDecodeError, max_depth: int) -> Any:
    """What the engines' own parser, Python's, takes and orjson does not: NaN, numbers beyond a double."""
    try:
        fields = json.loads(body.decode())
        if _HALF_A_PAIR.search(body):
            json.dumps(fields, ensure_ascii=False).encode()  # half a surrogate pair cannot be written
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError:
        raise _unreadable(body, error, max_depth) from None
    return fields


def _unreadable(body: bytes, error: orjson.JSONDecodeError, max_depth: int) -> BadRequest:
    text = str(error)
    if not body:
        return BadRequest("The body is empty; it must be a JSON object.", code="invalid_json")
    if "depth limit" in text:
        return _too_deep(max_depth)
    try:
        body.decode()
    except UnicodeDecodeError as at:
        return BadRequest(f"The body is not UTF-8: invalid byte at offset {at.start}.", code="invalid_utf8")
    if "surrogate" in text or "hex escape" in text:
        return BadRequest(
            f"The body holds half of a surrogate pair (\\ud800 to \\udfff alone), which is no character: {text}",
            code="invalid_unicode",
        )
    return BadRequest(f"The body is not valid JSON: {text}", code="invalid_json")


def _too_deep(limit: int) -> BadRequest:
    return BadRequest(f"The body is nested deeper than {limit} levels.", code="nesting_too_deep")


def _check_containers(body: bytes, max_depth: int) -> None:
    """Refuse a body in which too many objects and lists begin, before they are made. Those in texts do not count."""
    position = opened = depth = 0
    while (bracket := _BRACKET.match(body, position)) is not None:
        position = bracket.end()
        if body[position - 1] not in _OPENING:
            depth -= 1
            continue
        opened += 1
        depth += 1
        if depth > max_depth:
            raise _too_deep(max_depth)
        if opened > _MOST_CONTAINERS:
            raise BadRequest(
                f"The body holds more than {_MOST_CONTAINERS} objects and lists. Send fewer messages, parts or tools.",
                code="too_many_values",
            )


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


def _check_messages(fields: dict[str, Any]) -> None:
    messages = fields.get("messages")
    if messages is None:
        raise BadRequest(
            "`messages` is missing: give a list of messages.", param="messages", code="missing_required_parameter"
        )
    if not isinstance(messages, list):
        raise _wrong_type("messages", "a list of messages")
    if not messages:
        raise BadRequest("`messages` is empty: give at least one message.", param="messages", code="invalid_value")
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _wrong_type(f"messages[{position}]", "an object with a role")
        if not isinstance(message.get("role"), str):
            raise _wrong_type(f"messages[{position}].role", "a string such as user, assistant, system or tool")
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            raise _wrong_type(f"messages[{position}].content", "a string or a list of content parts")
    tools = fields.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise _wrong_type("tools", "a list")


def _check_prompt(fields: dict[str, Any]) -> None:
    prompt = fields.get("prompt")
    if prompt is None and fields.get("prompt_embeds") is None:
        raise BadRequest(
            "`prompt` is missing: give a string, a list of strings, or token ids.",
            param="prompt",
            code="missing_required_parameter",
        )
    if prompt is not None and not isinstance(prompt, (str, list)):
        raise _wrong_type("prompt", "a string, a list of strings, or token ids")
    if isinstance(prompt, list) and len(prompt) > _MOST_PROMPTS and set(map(type, prompt)) != {int}:
        raise BadRequest(
            f"`prompt` holds more than {_MOST_PROMPTS} prompts. Send them in several requests.",
            param="prompt",
            code="too_many_prompts",
        )


def _wrong_type(param: str, expected: str) -> BadRequest:
    return BadRequest(f"`{param}` must be {expected}.", param=param, code="invalid_type")


def _shown(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:100] + "…")
