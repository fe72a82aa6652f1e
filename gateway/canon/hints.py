"""Cache hints for other vendors (``prompt_cache_key``, ``cache_control``): kept or stripped as configured."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.canon.code_spans import fenced, touched
from gateway.canon.rewrite import rewritten
from gateway.canon.rule import Fields
from gateway.canon.texts import LEADING_ROLES
from gateway.config.canon_settings import CanonSettings
from gateway.core.json_edit import without
from gateway.core.request import ChatRequest

_CACHE_KEY = "prompt_cache_key"
_CACHE_CONTROL = "cache_control"
_BILLING_HEADER = "x-anthropic-billing-header:"


def without_hints(request: ChatRequest, settings: CanonSettings) -> ChatRequest:
    """The request without the hints that the settings exclude; the same object if there are none."""
    fields, body = request.fields, request.body
    if settings.cache_control == "strip" or _strips_billing(settings, request.dialect):
        fields = _without_marks(request, settings)
        body = rewritten(body, request.fields, fields)
    if _CACHE_KEY in fields and settings.prompt_cache_key == "strip":
        fields = {name: value for name, value in fields.items() if name != _CACHE_KEY}
        body = without(body, _CACHE_KEY)
    if fields is not request.fields:
        request = msgspec.structs.replace(request, fields=fields, body=body)
    return request


def has_strips(settings: CanonSettings, dialect: str = "") -> bool:
    """Whether any hint is to be stripped from requests of a ``dialect``."""
    return "strip" in (settings.cache_control, settings.prompt_cache_key) or _strips_billing(settings, dialect)


def _strips_billing(settings: CanonSettings, dialect: str) -> bool:
    return settings.billing_header == "strip" or (settings.billing_header == "auto" and dialect == "messages")


def _without_marks(request: ChatRequest, settings: CanonSettings) -> Fields:
    """The fields without ``cache_control`` and billing headers; the same object if there are none.

    Skips the search if the body does not contain the names as plain bytes: no client writes them with escapes.
    """
    fields = request.fields
    if _strips_billing(settings, request.dialect) and _BILLING_HEADER.encode() in request.body:
        fields = _with(fields, "messages", list(_without_billing(fields.get("messages"))))
    if settings.cache_control == "strip" and f'"{_CACHE_CONTROL}"'.encode() in request.body:
        messages = [_without_control(each, "content") for each in _list(fields.get("messages"))]
        fields = _with(fields, "messages", messages)
        tools = [_without_control(each, "function") for each in _list(fields.get("tools"))]
        fields = _with(fields, "tools", tools)
    return fields


def _without_control(value: Any, inside: str) -> Any:
    """A message, part or tool without ``cache_control``, its own and that of the values inside."""
    if not isinstance(value, Mapping):
        return value
    value = _unmarked(value)
    inner = value.get(inside)
    if isinstance(inner, list):
        return _with(value, inside, [_without_control(each, inside) for each in inner])
    return _with(value, inside, _unmarked(inner)) if isinstance(inner, Mapping) else value


def _unmarked(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if _CACHE_CONTROL not in value:
        return value
    return {name: each for name, each in value.items() if name != _CACHE_CONTROL}


def _without_billing(messages: Any) -> Iterator[Any]:
    leading = True
    for message in _list(messages):
        leading = leading and isinstance(message, Mapping) and message.get("role") in LEADING_ROLES
        yield _without_lines(message) if leading else message


def _without_lines(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return _with(message, "content", _unbilled(content))
    parts = [(part, _part_without_lines(part)) for part in _list(content)]
    left = [new for part, new in parts if new is part or not _is_blank(new)]
    # Engines refuse a message without parts.
    return _with(message, "content", left or [new for _, new in parts[:1]])


def _part_without_lines(part: Any) -> Any:
    if isinstance(part, str):
        return _unbilled(part)
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return _with(part, "text", _unbilled(part["text"]))
    return part


def _is_blank(part: Any) -> bool:
    text: str = part if isinstance(part, str) else part["text"]
    return not text.strip()


def _unbilled(text: str) -> str:
    """The text without the header's lines outside of code; the same object if there are none."""
    if _BILLING_HEADER not in text:
        return text
    code = fenced(text)
    left: list[str] = []
    at = 0
    for start, end in _billing_lines(text):
        if not touched(code, start, end):
            left.append(text[at:start])
            at = end
    return "".join([*left, text[at:]]) if left else text


def _billing_lines(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of the header's lines, with their line ends."""
    low = text.lower()
    low = low if len(low) == len(text) else text  # lower() makes a few letters longer
    at = low.find(_BILLING_HEADER)
    while at >= 0:
        start = at
        while start and text[start - 1] in " \t":
            start -= 1
        end = text.find("\n", at) + 1 or len(text)
        if start and text[start - 1] != "\n":
            end = at + len(_BILLING_HEADER)  # within a line
        else:
            yield start, end
        at = low.find(_BILLING_HEADER, end)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _with(value: Mapping[str, Any], name: str, new: Any) -> Mapping[str, Any]:
    """The object with a replaced member; the same object if the member is unchanged or missing."""
    old = value.get(name)
    if old is new or name not in value:
        return value
    if isinstance(old, list) and isinstance(new, list):
        same = len(old) == len(new) and all(one is other for one, other in zip(old, new, strict=True))
        if same:
            return value
    return {**value, name: new}
