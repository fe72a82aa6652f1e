"""JSON lines of request bodies: as they are, or each in an object with its answer and its time.

Also input files of OpenAI's Batch API: ``{"custom_id": …, "method": "POST", "url": …, "body": {…}}`` a line.

``{"model": …, "messages": […]}`` or ``{"request": {…}, "response": {…}, "timestamp": …}``; OpenAI's and Anthropic's
bodies, lines of both mixed.
"""

from collections.abc import Mapping
from typing import Any

from gateway.evaluation.logs.entry_fields import (
    first_time,
    header_values,
    loaded,
    reply_of,
    session_of,
    source_of,
    text_of,
    usage_of,
)
from gateway.evaluation.logs.logged_request import LoggedRequest, UnreadableEntry
from gateway.evaluation.logs.request_bodies import is_generation, read_body

_REQUESTS = ("request", "request_body", "req", "input", "kwargs")
_RESPONSES = ("response", "response_body", "resp", "output")
_PATHS = ("path", "url", "uri", "endpoint", "route")


def takes_bodies(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is a body, or has one as ``request``."""
    return is_generation(entry) or _wrapped(entry) is not None


def read_bodies(entry: Mapping[str, Any], place: str) -> LoggedRequest:
    """The request of one line.

    Raises:
        OtherEntry: It is a request to an API that generates no text.
        UnreadableEntry: There is no body in it.
    """
    if is_generation(entry):
        endpoint, body = read_body(entry)
        source = source_of({}, _metadata(entry, "client"), _metadata(entry, "source"), _metadata(entry, "app"))
        session = text_of(_metadata(entry, "session_id"), _metadata(entry, "session"))
        return LoggedRequest(place, endpoint, body, first_time(entry), source, "", session)
    request = _wrapped(entry)
    if request is None:
        raise UnreadableEntry("JSON without `messages` or `prompt`")
    headers = header_values(entry.get("headers")) | header_values(request.get("headers"))
    path = next((str(each[name]) for name in _PATHS for each in (entry, request) if each.get(name)), "")
    inner = loaded(request.get("body"))
    body = inner if isinstance(inner, dict) else request
    response = next((entry[name] for name in _RESPONSES if name in entry), None)
    response = loaded(response)
    if isinstance(response, dict) and "body" in response:
        response = response["body"]
    endpoint, body = read_body(body, path)
    return LoggedRequest(
        place=place,
        endpoint=endpoint,
        body=body,
        at=first_time(entry, request),
        source=source_of(headers, entry.get("source"), entry.get("client"), entry.get("app")),
        tenant=text_of(entry.get("tenant"), entry.get("team"), entry.get("organization")),
        session=session_of(headers, entry.get("session_id"), entry.get("session")),
        usage=usage_of(response) or usage_of(entry),
        reply=reply_of(response),
    )


def _wrapped(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    for name in _REQUESTS:
        request = loaded(entry.get(name))
        if isinstance(request, dict) and (is_generation(request) or is_generation(loaded(request.get("body")))):
            return request
    return None


def _metadata(body: Mapping[str, Any], name: str) -> Any:
    metadata = body.get("metadata")
    return metadata.get(name) if isinstance(metadata, dict) else None


def takes_batch(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is a line of a batch."""
    return "custom_id" in entry and isinstance(entry.get("body"), dict)


def read_batch(entry: Mapping[str, Any], place: str) -> LoggedRequest:
    """The request of one line; a batch has no times.

    Raises:
        OtherEntry: It is a request to an API that generates no text.
        UnreadableEntry: There is no body in it.
    """
    body = entry.get("body")
    if not isinstance(body, dict):
        raise UnreadableEntry("a line of a batch without `body`")
    endpoint, fields = read_body(body, text_of(entry.get("url")))
    return LoggedRequest(place, endpoint, fields, source="batch")
