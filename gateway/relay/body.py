"""The request body on its way to the replica: the client's bytes, with two members put in:
``stream_options.include_usage`` and, where prefix spaces are isolated, ``cache_salt``.

Only these members are touched. The body is not parsed and written again, because another spelling of a number, another
key order or a lost duplicate key could change what the engine does.
"""

from collections.abc import Mapping
from typing import Any

from gateway.json_bytes import inserted, member_values

_ASK = b'"stream_options":{"include_usage":true}'


def asking_for_usage(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """A streaming request's body, asking for the usage chunk.

    Args:
        body: A valid JSON object.
        fields: The same, parsed.
    """
    options = fields.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage") is True:
        return body
    if "stream_options" not in fields:
        return inserted(body, _ASK)
    for start, end in reversed(list(member_values(body, "stream_options"))):
        body = body[:start] + _asking(body[start:end]) + body[end:]
    return body


def salted(body: bytes, fields: Mapping[str, Any], salt: str) -> bytes:
    """A body with this ``cache_salt`` in place of the client's own, however often it gave one.

    Args:
        body: A valid JSON object.
        fields: The same, parsed.
        salt: Base64url.
    """
    value = b'"' + salt.encode() + b'"'
    if "cache_salt" not in fields:
        return inserted(body, b'"cache_salt":' + value)
    for start, end in reversed(list(member_values(body, "cache_salt"))):
        body = body[:start] + value + body[end:]
    return body


def _asking(options: bytes) -> bytes:
    """The value of ``stream_options``, asking for usage."""
    if not options.startswith(b"{"):
        return b'{"include_usage":true}'
    # The engine heeds continuous_usage_stats only together with include_usage: a client that set just the former gets
    # no usage at all, and must not get any now.
    changes = [(span, b"false") for span in member_values(options, "continuous_usage_stats")]
    asked = [(span, b"true") for span in member_values(options, "include_usage")]
    for (start, end), value in sorted(changes + asked, reverse=True):
        options = options[:start] + value + options[end:]
    return options if asked else inserted(options, b'"include_usage":true')
