"""Parses a request body into a ``ChatRequest``.

Only the fields that the gateway itself reads are checked: model, the prompt's outer form, ``stream``. The engine checks
everything else, and its error passes through: a stricter parser here would refuse what a newer engine accepts.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gateway.admission.prompt_registry import PROMPT_ID, PROMPT_VERSION, PromptRegistry
from gateway.api.asked_prompt import Asked, asked_prompt
from gateway.api.body_json import (
    LONG,
    SHORT_BYTES,
    fits,
    parsed_at_once,
    parsed_in_portions,
    too_much,
    unreadable,
)
from gateway.api.dialects import Translated
from gateway.api.identity import identity_of
from gateway.api.request_numbers import check_numbers
from gateway.core.client_places import SAME_PLACES
from gateway.core.diagnosis import EXPLAIN
from gateway.core.errors import BadRequest, GatewayError, NotFound
from gateway.core.ids import ModelId, RequestId
from gateway.core.json_portions import PORTION, InvalidJson, JsonLimits, TooMuchJson, scanned, upper_bounds
from gateway.core.numbers import MAX_SEQUENCES, batch_size
from gateway.core.portions import Portioned
from gateway.core.request import ChatRequest, Endpoint, EnginePath
from gateway.core.tenant import Caller

_MAX_PROMPTS = 4096
"""Prompts in one request."""

_CHECKED_AT_ONCE = 5000
"""Messages, or prompts, that are checked in one portion."""

_CHAT = Endpoint.CHAT  # looking up a member of an enum takes as long as several other look-ups
_CONTENT = (str, list, type(None))
"""Types of the content of a message."""

_TIMEOUT = b"x-request-timeout"
_SECONDS = re.compile(rb"\d{1,9}(\.\d{1,9})?")


def parse_request(
    endpoint: Endpoint | EnginePath,
    query: bytes,
    body: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    *,
    models: Collection[str],
    limits: JsonLimits,
    hold: Callable[[int], None],
    dropped: Callable[[int], None] | None = None,
    request_id: RequestId,
    received_at: float,
    caller: Caller,
    peer: str,
    max_sequences: int = MAX_SEQUENCES,
    prompts: PromptRegistry | None = None,
    fields: dict[str, Any] | None = None,
    dialect: str = "",
    named: Mapping[bytes, bytes] = {},
    given: Mapping[str, Any] | None = None,
    translated: Translated | None = None,
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
        received_at: See ``ChatRequest``.
        caller: See ``ChatRequest``.
        peer: See ``ChatRequest``.
        max_sequences: Maximum sequences of one request.
        prompts: The registered prompts; None without any.
        fields: The body parsed; None if it is not yet.
        dialect: See ``ChatRequest``.
        named: The last header of each name.
        given: The body as the client sent it, parsed, if the request was translated; None if it was not.
        translated: The request as it was translated; None if it was not.

    Raises:
        BadRequest: the body violates the API; message, param and code name the field and the fix.
        NotFound: the model, or the prompt, is unknown.
    """
    path, method = "", "POST"
    if isinstance(endpoint, EnginePath):
        path, method, endpoint, prompts = endpoint.path, endpoint.method, Endpoint.COMPLETIONS, None
    if fields is None:
        fields = yield from parsed_object(body, limits, hold)
    identity = identity_of(named, fields if given is None else given)
    by_header = PROMPT_ID in named or PROMPT_VERSION in named
    if prompts is not None and (by_header or "template" in fields or "variables" in fields):
        if fields.get("messages"):
            further = _check_chat(fields, limits)  # its errors name positions in the client's own messages
            if further is not None:
                yield from further
        asked = asked_prompt(prompts, named, endpoint, Asked(body, fields, caller))
        if asked.body is not body:
            hold(len(asked.body))
        body, fields, caller = asked
    model = fields.get("model")
    if not isinstance(model, str) or model not in models or (caller.models is not None and not caller.may_use(model)):
        raise _no_model(model, [each for each in models if caller.may_use(each)])
    stream = options = None
    if path and batch_size(fields) > max_sequences:
        raise BadRequest(f"More than {max_sequences} inputs (server.max_sequences).", code="too_many_prompts")
    if not path:
        stream = fields.get("stream")
        if stream is not None and not isinstance(stream, bool):
            raise _wrong_type("stream", "a boolean")
        options = fields.get("stream_options")
        if options is not None and not isinstance(options, dict):
            raise _wrong_type("stream_options", "an object")
        if endpoint is _CHAT:
            further = _check_chat(fields, limits)
            if further is not None:
                yield from further
        else:
            yield from _check_prompt(fields)
        check_numbers(endpoint, fields, max_sequences)
    compares = None if translated is None else translated.compares
    if not compares and EXPLAIN in named:
        compares = named[EXPLAIN].decode("latin-1")
    # By position: by keyword, so many fields take ten times as long.
    return ChatRequest(
        endpoint,
        query,
        body,
        fields,
        headers,
        ModelId(model),
        bool(stream),
        bool(options and options.get("include_usage")),  # usage_wanted
        request_id,
        (identity.session if identity.is_exact else "") or None,
        received_at,
        caller,
        peer,
        _seconds(headers) if _TIMEOUT in named else None,
        None,  # warmup_target
        len(body),
        dropped,
        None,  # assignment
        None,  # restores
        dialect,
        path,
        method,
        identity,
        SAME_PLACES if translated is None else translated.places,
        compares or None,
    )


def parsed_object(body: bytes, limits: JsonLimits, hold: Callable[[int], None]) -> Portioned[dict[str, Any]]:
    """The JSON object of a body; for the arguments see ``parse_request``.

    Raises:
        BadRequest: it is none, or exceeds a limit.
    """
    try:
        fields = parsed_at_once(body, limits, hold)
        if fields is LONG:
            fields = yield from parsed_in_portions(body, limits, hold)
    except InvalidJson as error:
        raise (yield from unreadable(body, str(error), limits.depth)) from None
    if not isinstance(fields, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    return fields


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


def _seconds(headers: Sequence[tuple[bytes, bytes]]) -> float:
    value = next(value for name, value in headers if name == _TIMEOUT)  # the first one counts
    # No exponents, infinities or underscores, which float() would take.
    if not _SECONDS.fullmatch(value.strip()) or not (seconds := float(value)):
        raise BadRequest(
            "`x-request-timeout` must be a number of seconds above 0, such as 30 or 2.5, not"
            f" {_shown(value.decode('latin-1'))}.",
            param="x-request-timeout",
            code="invalid_header",
        )
    return seconds


def _check_chat(fields: dict[str, Any], limits: JsonLimits) -> Portioned[None] | None:
    """Check messages and tools.

    Returns:
        The rest of the checks; None for most bodies, which have few messages and no tool calls.
    """
    messages = fields.get("messages")
    if messages is None:
        raise BadRequest(
            "`messages` is missing: give a list of messages.", param="messages", code="missing_required_parameter"
        )
    if not isinstance(messages, list):
        raise _wrong_type("messages", "a list of messages")
    if not messages:
        raise BadRequest("`messages` is empty: give at least one message.", param="messages", code="invalid_value")
    checked = _check_messages(messages, 0, min(len(messages), _CHECKED_AT_ONCE))
    if checked < len(messages):
        return _check_further(fields, messages, checked, limits)
    if "tools" in fields:
        _check_tools(fields)
    return None


def _check_messages(messages: list[Any], start: int, end: int) -> int:
    """Check the form of the messages between two positions.

    Returns:
        The first position of one with tool calls, which ends the check; else ``end``.
    """
    for position in range(start, end):
        message = messages[position]
        # A parsed value is of no subclass: its type is compared, which is faster than ``isinstance``.
        if type(message) is not dict:
            raise _wrong_type(f"messages[{position}]", "an object with a role")
        if type(message.get("role")) is not str:
            raise _wrong_type(f"messages[{position}].role", "a string such as user, assistant, system or tool")
        if type(message.get("content")) not in _CONTENT:
            raise _wrong_type(f"messages[{position}].content", "a string or a list of content parts")
        if "tool_calls" in message:
            return position
    return end


def _check_further(fields: dict[str, Any], messages: list[Any], checked: int, limits: JsonLimits) -> Portioned[None]:
    """Check tool calls, and further messages; ``checked`` is what ``_check_messages`` returned for the first ones."""
    arguments = _ArgumentsCheck(limits)
    end = min(len(messages), _CHECKED_AT_ONCE)
    while checked < len(messages):
        if checked < end:
            yield from arguments.check(checked, messages[checked]["tool_calls"])
            checked += 1
        else:
            yield
            end = min(len(messages), end + _CHECKED_AT_ONCE)
        checked = _check_messages(messages, checked, end)
    _check_tools(fields)


def _check_tools(fields: dict[str, Any]) -> None:
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
                raise too_much(error.kind, self._limits, f"`{name}`", fix, name) from None
            self._looked_at += 1
            if self._looked_at % _CHECKED_AT_ONCE == 0:
                yield

    def _count(self, arguments: str) -> Portioned[None]:
        text = arguments.encode()
        if len(text) > PORTION:
            yield
        left = self._left
        counts = upper_bounds(text) if len(text) <= SHORT_BYTES else None
        if counts is None or not fits(counts, left):
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
