"""Access logs of nginx and Envoy as JSON lines, with the bodies of requests in one of their fields.

Both write only what their configuration names, so the body is looked for in every field whose name has ``body`` in it.
"""

import re
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
from gateway.evaluation.logs.logged_request import LoggedRequest, OtherEntry, UnreadableEntry
from gateway.evaluation.logs.request_bodies import is_generation, read_body

_MARKS = frozenset(
    (
        "status request_method method uri request_uri request remote_addr response_code path upstream_addr "
        "upstream_host http_user_agent user_agent bytes_sent body_bytes_sent protocol duration request_length "
        "authority start_time x_forwarded_for request_time bytes_received"
    ).split()
)
_LEAST_MARKS = 2
_PATHS = ("path", "request_uri", "uri", "url", "x_envoy_original_path", "original_path")
_SIZES = ("bytes", "size", "length")
_ESCAPED = re.compile(r"\\x([0-9A-Fa-f]{2})")
_NO_BODY = frozenset({"", "-", "null"})


def takes_access(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is a line of an access log, and not a body, nor one that wraps a body as ``request``."""
    if isinstance(entry.get("request"), dict) or is_generation(entry):
        return False
    return len(_MARKS & {name.lower().replace("-", "_") for name in entry}) >= _LEAST_MARKS


def read_access(entry: Mapping[str, Any], place: str) -> LoggedRequest:
    """The request of one line.

    Raises:
        OtherEntry: It is a request to an API that generates no text.
        UnreadableEntry: The line has no request body, or the body was cut off.
    """
    fields = {name.lower().replace("-", "_"): value for name, value in entry.items()}
    if _method(fields) not in ("POST", ""):
        raise OtherEntry
    path = _path(fields)
    body = _body(fields, "request") or _body(fields, "req") or _body(fields, "")
    if body is None:
        raise UnreadableEntry("an access log line without a request body")
    headers = header_values(entry.get("headers")) | header_values(entry.get("request_headers"))
    agent = text_of(fields.get("http_user_agent"), fields.get("user_agent"), headers.get("user-agent"))
    named = text_of(fields.get("http_x_client"), fields.get("x_client"), headers.get("x-client"))
    response = _response(fields)
    endpoint, read = read_body(body, path)
    return LoggedRequest(
        place=place,
        endpoint=endpoint,
        body=read,
        at=first_time(fields, entry),
        source=source_of({"user-agent": agent, "x-client": named}, fields.get("client_name"), fields.get("app")),
        tenant=text_of(fields.get("http_x_tenant"), fields.get("x_tenant"), fields.get("tenant")),
        session=session_of(headers, fields.get("http_x_session_id"), fields.get("x_session_id"), fields.get("session")),
        usage=usage_of(response),
        reply=reply_of(response),
    )


def _method(fields: Mapping[str, Any]) -> str:
    method = text_of(fields.get("request_method"), fields.get("method"))
    if not method:
        line = text_of(fields.get("request"))
        method = line.split(" ")[0] if " " in line else ""
    return method.upper()


def _path(fields: Mapping[str, Any]) -> str:
    found = text_of(*(fields.get(name) for name in _PATHS))
    if found:
        return found
    words = text_of(fields.get("request")).split(" ")
    return words[1] if len(words) > 1 else ""


def _body(fields: Mapping[str, Any], beginning: str) -> dict[str, Any] | None:
    for name, value in fields.items():
        if (
            "body" not in name
            or not name.startswith(beginning)
            or "resp" in name
            or any(each in name for each in _SIZES)
        ):
            continue
        if isinstance(value, str) and value.strip() in _NO_BODY:
            continue
        found = loaded(value)
        if isinstance(found, str) and "\\x" in found:
            # nginx with escape=default writes quotes as \x22, and bytes beyond ASCII one by one.
            found = loaded(
                _ESCAPED.sub(lambda each: chr(int(each[1], 16)), found)
                .encode("latin-1", "replace")
                .decode("utf-8", "replace")
            )
        if isinstance(found, dict):
            return found
        if isinstance(found, str) and found.lstrip().startswith("{"):
            raise UnreadableEntry("a request body that is not complete JSON (cut off in the log?)")
    return None


def _response(fields: Mapping[str, Any]) -> Any:
    return next(
        (
            value
            for name, value in fields.items()
            if "body" in name and "resp" in name and not any(each in name for each in _SIZES)
        ),
        None,
    )
