"""Fields that entries of several formats have: times, headers, usage and answers."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.core.numbers import whole
from gateway.evaluation.logs.logged_request import ReportedUsage
from gateway.explain.client_family import UNKNOWN, client_family

TIME_NAMES = (
    *("timestamp", "time", "ts", "@timestamp", "start_time", "startTime", "started_at", "time_iso8601", "msec"),
    *("startedDateTime", "created_at", "request_time", "datetime", "date", "time_local", "created"),
)
"""Names of the time of an entry, in the order in which they are tried."""

_MILLISECONDS_FROM = 1e11
_MICROSECONDS_FROM = 1e14
_NANOSECONDS_FROM = 1e17
"""A number of seconds is below the first one until the year 5138."""

_EARLIEST, _LATEST = 1e9, 4e9
"""Unix seconds that count as the time of a request: from 2001 to 2096."""

_ACCESS_LOG_TIME = "%d/%b/%Y:%H:%M:%S %z"
_LONGEST_TIME = 40
_LABEL_CHARS = 80

_SOURCE_HEADERS = ("x-client", "user-agent")
_SESSION_HEADER = "x-session-id"


def time_of(value: Any) -> float | None:
    """Unix seconds of a number (seconds to nanoseconds) or of a text; None if it is no time."""
    if isinstance(value, str) and len(value) <= _LONGEST_TIME:
        value = _time_of_text(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    for unit, least in ((1e9, _NANOSECONDS_FROM), (1e6, _MICROSECONDS_FROM), (1e3, _MILLISECONDS_FROM)):
        if value >= least:
            value /= unit
            break
    return float(value) if _EARLIEST <= value <= _LATEST else None


def _time_of_text(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        pass
    for read in (datetime.fromisoformat, _access_log_time):
        try:
            found = read(text)
        except ValueError:
            continue
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    return None


def _access_log_time(text: str) -> datetime:
    return datetime.strptime(text, _ACCESS_LOG_TIME)


def first_time(*entries: Mapping[str, Any]) -> float | None:
    """The first time that one of the entries has under one of ``TIME_NAMES``."""
    for entry in entries:
        for name in TIME_NAMES:
            if name in entry and (found := time_of(entry[name])) is not None:
                return found
    return None


def text_of(*values: Any) -> str:
    """The first value that is a text with something in it, shortened to a label; else empty."""
    for value in values:
        if isinstance(value, str) and value.strip():
            return value.strip()[:_LABEL_CHARS]
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return ""


def header_values(headers: Any) -> dict[str, str]:
    """Headers by their name in lower case, of an object or of a list of names and values."""
    pairs: Sequence[tuple[Any, Any]] = ()
    if isinstance(headers, dict):
        pairs = list(headers.items())
    elif isinstance(headers, list):
        pairs = [(each.get("name"), each.get("value")) for each in headers if isinstance(each, dict)]
    found: dict[str, str] = {}
    for name, value in pairs:
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(name, str) and isinstance(first, str):
            found.setdefault(name.lower(), first)
    return found


def source_of(headers: Mapping[str, str], *otherwise: Any) -> str:
    """The client family: of the headers as in the gateway, else of the first text of ``otherwise``."""
    given = [(name.encode(), headers[name].encode()) for name in _SOURCE_HEADERS if name in headers]
    found = client_family(given)
    if found != UNKNOWN:
        return found
    named = text_of(*otherwise)
    return client_family([(b"x-client", named.encode())]) if named else UNKNOWN


def session_of(headers: Mapping[str, str], *otherwise: Any) -> str:
    """The session: ``x-session-id``, else the first text of ``otherwise``."""
    return text_of(headers.get(_SESSION_HEADER), *otherwise)


def loaded(value: Any) -> Any:
    """A value that may be written as JSON text; the text itself if it is none."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text.startswith(("{", "[")):
        return value
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return value


def usage_of(response: Any) -> ReportedUsage | None:
    """The usage that an answer reports: an object, its JSON, or the events of a stream."""
    usage = _usage_object(response)
    if usage is None:
        return None
    prompt = whole(usage.get("prompt_tokens"))
    if prompt is None:
        return _usage_of_blocks(usage)
    details = usage.get("prompt_tokens_details")
    cached = whole(details.get("cached_tokens")) if isinstance(details, dict) else None
    if cached is None:
        cached = whole(usage.get("prompt_cache_hit_tokens"))
    if cached is None:
        cached = whole(usage.get("cache_read_input_tokens"))
    if cached is None and isinstance(details, dict):
        cached = 0  # engines that report details leave a zero out
    return ReportedUsage(max(prompt, 0), cached, max(whole(usage.get("completion_tokens")) or 0, 0))


def _usage_of_blocks(usage: Mapping[str, Any]) -> ReportedUsage | None:
    """The usage of the Messages API, which counts cached tokens apart."""
    computed = whole(usage.get("input_tokens"))
    if computed is None:
        return None
    read, written = whole(usage.get("cache_read_input_tokens")), whole(usage.get("cache_creation_input_tokens"))
    return ReportedUsage(
        max(computed + (read or 0) + (written or 0), 0),
        0 if read is None and written is not None else read,
        max(whole(usage.get("output_tokens")) or 0, 0),
    )


def _usage_object(response: Any) -> dict[str, Any] | None:
    if isinstance(response, str) and "data:" in response:
        found: dict[str, Any] | None = None
        for line in response.splitlines():
            if line.startswith("data:") and '"usage"' in line:
                event = loaded(line[5:])
                usage = _usage_object(event) or (
                    _usage_object(event.get("message")) if isinstance(event, dict) else None
                )
                found = {**(found or {}), **usage} if usage else found
        return found
    response = loaded(response)
    usage = response.get("usage") if isinstance(response, dict) else None
    return usage if isinstance(usage, dict) else None


def reply_of(response: Any) -> str | None:
    """The text of an answer with one choice that is plain text; else None. Streams are not put together."""
    response = loaded(response)
    if not isinstance(response, dict):
        return None
    choices = response.get("choices")
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        message = choices[0].get("message")
        if not isinstance(message, dict):
            text = choices[0].get("text")
            return text if isinstance(text, str) else None
        if message.get("tool_calls") or message.get("reasoning") or message.get("reasoning_content"):
            return None
        text = message.get("content")
        return text if isinstance(text, str) else None
    blocks = response.get("content")
    if (
        isinstance(blocks, list)
        and len(blocks) == 1
        and isinstance(blocks[0], dict)
        and blocks[0].get("type") == "text"
    ):
        text = blocks[0].get("text")
        return text if isinstance(text, str) else None
    return None
