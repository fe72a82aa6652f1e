"""HAR files, as browsers and proxies export them: one JSON document with all requests and answers."""

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import orjson

from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.logs.entry_fields import (
    first_time,
    header_values,
    loaded,
    reply_of,
    session_of,
    source_of,
    usage_of,
)
from gateway.evaluation.logs.logged_request import LoggedRequest, OtherEntry, UnreadableEntry
from gateway.evaluation.logs.request_bodies import read_body


def entries_of(document: bytes, name: str) -> Iterator[Any]:
    """The entries of a document, each a request with its answer.

    Raises:
        BadInput: It is no HAR document.
    """
    try:
        log = orjson.loads(document).get("log")
        entries = log.get("entries")
    except (orjson.JSONDecodeError, AttributeError):
        entries = None
    if not isinstance(entries, list):
        raise BadInput(f"{name}: begins like a HAR file and is none: expected `log.entries`, complete to its end")
    yield from entries


def read_entry(entry: Any, place: str) -> LoggedRequest:
    """The request of one entry.

    Raises:
        OtherEntry: It has no body, or is a request to an API that generates no text.
        UnreadableEntry: Its body is no JSON.
    """
    request = entry.get("request") if isinstance(entry, dict) else None
    if not isinstance(request, dict):
        raise UnreadableEntry("an entry without `request`")
    posted = request.get("postData")
    body = loaded(posted.get("text")) if isinstance(posted, dict) else None
    if request.get("method") != "POST" or not posted:
        raise OtherEntry
    if not isinstance(body, dict):
        raise UnreadableEntry("a request body that is no JSON object")
    headers = header_values(request.get("headers"))
    response = _answer(entry.get("response"))
    endpoint, fields = read_body(body, _path(str(request.get("url", ""))))
    return LoggedRequest(
        place=place,
        endpoint=endpoint,
        body=fields,
        at=first_time(entry),
        source=source_of(headers),
        session=session_of(headers),
        usage=usage_of(response),
        reply=reply_of(response),
    )


def _path(url: str) -> str:
    return "/" + url.partition("://")[2].partition("/")[2].partition("?")[0]


def _answer(response: Any) -> Any:
    content = response.get("content") if isinstance(response, dict) else None
    if not isinstance(content, dict) or not isinstance(content.get("text"), str):
        return None
    if content.get("encoding") != "base64":
        return content["text"]
    try:
        return base64.b64decode(content["text"]).decode("utf-8", "replace")
    except (ValueError, binascii.Error):
        return None
