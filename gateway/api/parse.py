"""Parses a request body into a ``ChatRequest``.

Only the fields that the gateway itself reads are checked: model, the prompt's outer form, ``stream``. The engine checks
everything else, and its error passes through: a stricter parser here would refuse what a newer engine accepts.
"""

import codecs
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import orjson

from gateway.api.asked_prompt import Asked, PromptHeaders, asked_prompt
from gateway.api.request_numbers import check_numbers
from gateway.core.errors import BadRequest, GatewayError, NotFound
from gateway.core.ids import ModelId, RequestId
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
from gateway.core.numbers import MAX_SEQUENCES
from gateway.core.portions import Portioned
from gateway.core.request import ChatRequest, Endpoint
from gateway.core.tenant import Caller
from gateway.prompts import PromptRegistry

_MAX_PROMPTS = 4096
"""Prompts in one request."""

_SHORT_BYTES = 1024 * 1024
_SHORT_VALUES = 20_000
"""A body up to this size, with no more brackets, colons and commas, is parsed in one go, which takes some 10 ms at
most; all others are parsed in portions."""

_LONG = object()
"""Stands for the value of a body that is parsed in portions."""

_CHECKED_AT_ONCE = 5000
"""Messages, or prompts, that are checked in one portion."""

_CONTENT = (str, list, type(None))
"""Types of the content of a message."""

_VALUE_BYTES = 64
_CONTAINER_BYTES = 128
"""Memory of a parsed number, name or short string, and of a list or object, including its slot in the container."""

_SECONDS = re.compile(rb"\d{1,9}(\.\d{1,9})?")


def parse_request(
    endpoint: Endpoint,
    query: bytes,
    body: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    *,
    models: Collection[str],
    limits: JsonLimits,
    hold: Callable[[int], None],
    dropped: Callable[[int], None] | None = None,
    request_id: RequestId,
    session: str | None,
    received_at: float,
    caller: Caller,
    peer: str,
    max_sequences: int = MAX_SEQUENCES,
    prompts: PromptRegistry | None = None,
    prompt_headers: PromptHeaders | None = None,
    timeout: bytes | None = None,
) -> Portioned[ChatRequest]:
    """Parse and check a body.

    Args:
        endpoint: Which API was called.
        query: Query string.
        body: The body.
        headers: The client's headers.
        models: The models that are served.
        limits: Limits of the body's size and depth.
        hold: Called with the memory that the parsed body takes, before it is parsed. Its exceptions end the parsing.
        dropped: See ``ChatRequest``.
        request_id: See ``ChatRequest``.
        session: See ``ChatRequest``.
        received_at: See ``ChatRequest``.
        caller: See ``ChatRequest``.
        peer: See ``ChatRequest``.
        max_sequences: Maximum sequences of one request.
        prompts: The registered prompts; None without any.
        prompt_headers: The headers that name an application; None without them.
        timeout: Value of ``x-request-timeout``; None without it.

    Raises:
        BadRequest: the body violates the API; message, param and code name the field and the fix.
        NotFound: the model, or the prompt, is unknown.
    """
    try:
        fields = _parsed_at_once(body, limits, hold)
        if fields is _LONG:
            fields = yield from _parsed_in_portions(body, limits, hold)
    except InvalidJson as error:
        raise (yield from _unreadable(body, str(error), limits.depth)) from None
    if not isinstance(fields, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    if prompts is not None and (prompt_headers is not None or "template" in fields or "variables" in fields):
        if fields.get("messages"):
            yield from _check_messages(fields, limits)  # its errors name positions in the client's own messages
        asked = asked_prompt(prompts, prompt_headers, endpoint, Asked(body, fields, caller))
        if asked.body is not body:
            hold(len(asked.body))
        body, fields, caller = asked
    model = fields.get("model")
    if not isinstance(model, str) or model not in models or (caller.models is not None and not caller.may_use(model)):
        raise _no_model(model, [each for each in models if caller.may_use(each)])
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise _wrong_type("stream", "a boolean")
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise _wrong_type("stream_options", "an object")
    if endpoint is Endpoint.CHAT:
        yield from _check_messages(fields, limits)
    else:
        yield from _check_prompt(fields)
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
        timeout_seconds=None if timeout is None else _seconds(timeout),
        dropped=dropped,
    )


def _no_model(model: object, known: Collection[str]) -> GatewayError:
    """The error for a request that names none of the models that its caller may use."""
    if isinstance(model, str):
        return unknown_model(model, known)
    return BadRequest(
        "`model` is missing: name one of " + known_models(known) if model is None else "`model` must be a string.",
        param="model",
        code="missing_required_parameter" if model is None else "invalid_type",
    )


def unknown_model(model: str, known: Collection[str]) -> NotFound:
    """The error for a model that does not exist or that the client may not use: indistinguishable on purpose.

    Args:
        model: The requested model.
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


def _seconds(value: bytes) -> float:
    # No exponents, infinities or underscores, which float() would take.
    if not _SECONDS.fullmatch(value.strip()) or not (seconds := float(value)):
        raise BadRequest(
            "`x-request-timeout` must be a number of seconds above 0, such as 30 or 2.5, not"
            f" {_shown(value.decode('latin-1'))}.",
            param="x-request-timeout",
            code="invalid_header",
        )
    return seconds


def _fits(counts: JsonCounts, limits: JsonLimits) -> bool:
    return (
        counts.containers <= limits.containers and counts.members <= limits.members and counts.values <= limits.values
    )


def _weight(body: bytes, counts: JsonCounts) -> int:
    """Estimated memory of a parsed body. Texts take as much as in the body; with characters beyond ASCII up to four
    times as much, usually twice."""
    texts = len(body) if body.isascii() else 2 * len(body)
    return texts + _VALUE_BYTES * (counts.values + counts.members) + _CONTAINER_BYTES * counts.containers


def _parsed_at_once(body: bytes, limits: JsonLimits, hold: Callable[[int], None]) -> Any:
    """The value of a body; ``_LONG`` if it is to be parsed in portions."""
    if len(body) > _SHORT_BYTES:
        return _LONG
    most = upper_bounds(body)
    if most.members + most.values > _SHORT_VALUES or not _fits(most, limits):
        return _LONG
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


def _parsed_in_portions(body: bytes, limits: JsonLimits, hold: Callable[[int], None]) -> Portioned[Any]:
    yield
    try:
        structure = yield from scanned(body, limits)
        hold(_weight(body, structure.counts))
        return (yield from built(body, structure))
    except TooMuchJson as error:
        raise _too_much(error.kind, limits, "The body", "Send fewer messages, parts or tools.") from None


def _too_much(kind: str, limits: JsonLimits, where: str, fix: str, param: str | None = None) -> BadRequest:
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


def _unreadable(body: bytes, text: str, max_depth: int) -> Portioned[BadRequest]:
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


def _check_messages(fields: dict[str, Any], limits: JsonLimits) -> Portioned[None]:
    messages = fields.get("messages")
    if messages is None:
        raise BadRequest(
            "`messages` is missing: give a list of messages.", param="messages", code="missing_required_parameter"
        )
    if not isinstance(messages, list):
        raise _wrong_type("messages", "a list of messages")
    if not messages:
        raise BadRequest("`messages` is empty: give at least one message.", param="messages", code="invalid_value")
    arguments = None
    for position, message in enumerate(messages):
        # A parsed value is of no subclass: its type is compared, which is faster than ``isinstance``.
        if type(message) is not dict:
            raise _wrong_type(f"messages[{position}]", "an object with a role")
        if type(message.get("role")) is not str:
            raise _wrong_type(f"messages[{position}].role", "a string such as user, assistant, system or tool")
        if type(message.get("content")) not in _CONTENT:
            raise _wrong_type(f"messages[{position}].content", "a string or a list of content parts")
        if "tool_calls" in message:
            arguments = arguments or _ArgumentsCheck(limits)
            yield from arguments.check(position, message["tool_calls"])
        if position % _CHECKED_AT_ONCE == _CHECKED_AT_ONCE - 1:
            yield
    tools = fields.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise _wrong_type("tools", "a list")


class _ArgumentsCheck:
    """Counts the values in the arguments of all tool calls: JSON in strings, which gateway and engines parse.

    Args:
        limits: Limits of all arguments together; the depth is not checked here.
    """

    def __init__(self, limits: JsonLimits) -> None:
        self._limits = limits
        self._left = limits._replace(depth=2**30)
        self._looked_at = 0

    def check(self, message: int, calls: Any) -> Portioned[None]:
        """Refuse a message whose tool call arguments exceed the limits."""
        for number, call in enumerate(calls if isinstance(calls, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if not isinstance(arguments, str):
                continue
            try:
                yield from self._count(arguments)
            except TooMuchJson as error:
                name = f"messages[{message}].tool_calls[{number}].function.arguments"
                fix = "Send fewer tool calls, or shorter arguments."
                raise _too_much(error.kind, self._limits, f"`{name}`", fix, name) from None
            self._looked_at += 1
            if self._looked_at % _CHECKED_AT_ONCE == 0:
                yield

    def _count(self, arguments: str) -> Portioned[None]:
        text = arguments.encode()
        if len(text) > PORTION:
            yield
        left = self._left
        counts = upper_bounds(text) if len(text) <= _SHORT_BYTES else None
        if counts is None or not _fits(counts, left):
            try:
                counts = (yield from scanned(text, left)).counts
            except InvalidJson:
                return  # engines treat it as no arguments
        self._left = left._replace(
            containers=left.containers - counts.containers,
            members=left.members - counts.members,
            values=left.values - counts.values,
        )
        if len(text) > PORTION:
            yield


def _check_prompt(fields: dict[str, Any]) -> Portioned[None]:
    prompt = fields.get("prompt")
    if prompt is None and fields.get("prompt_embeds") is None:
        raise BadRequest(
            "`prompt` is missing: give a string, a list of strings, or token ids.",
            param="prompt",
            code="missing_required_parameter",
        )
    if prompt is not None and not isinstance(prompt, (str, list)):
        raise _wrong_type("prompt", "a string, a list of strings, or token ids")
    if isinstance(prompt, list) and len(prompt) > _MAX_PROMPTS and not (yield from _are_ids(prompt)):
        raise BadRequest(
            f"`prompt` holds more than {_MAX_PROMPTS} prompts. Send them in several requests.",
            param="prompt",
            code="too_many_prompts",
        )


def _are_ids(prompt: list[Any]) -> Portioned[bool]:
    """Whether a prompt is one of token ids."""
    step = 10 * _CHECKED_AT_ONCE
    for start in range(0, len(prompt), step):
        if set(map(type, prompt[start : start + step])) != {int}:
            return False
        if start:
            yield
    return True


def _wrong_type(param: str, expected: str) -> BadRequest:
    return BadRequest(f"`{param}` must be {expected}.", param=param, code="invalid_type")


def _shown(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:100] + "…")
