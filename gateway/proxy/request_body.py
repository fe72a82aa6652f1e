"""Makes the body that is sent to a replica: the client's bytes, with two members set,
``stream_options.include_usage`` and, where prefix spaces are isolated, ``cache_salt``.

Only these members are changed. The body is not parsed and serialized again, because another spelling of a number,
another key order or a lost duplicate key could change the engine's result.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.core.json_edit import inserted, last_member_value, spliced, with_members
from gateway.core.numbers import whole
from gateway.core.portions import Portioned
from gateway.core.request import ChatRequest
from gateway.turns import Turns

_OPTIONS = "stream_options"
_ASK = b'{"include_usage":true}'
_ANSWER_LIMITS = ("max_completion_tokens", "max_tokens")
_ASKING = b'"stream_options":' + _ASK


class EngineBody(msgspec.Struct, eq=False):
    """Makes the body that is sent to replicas, and keeps it: most retries send the same one.

    Attributes:
        turns: Runs the work on a long body in portions.
    """

    turns: Turns
    _request: ChatRequest | None = None
    _body: bytes = b""

    async def of(self, request: ChatRequest, salt: str | None) -> bytes:
        """The body for a request, or for the continuation of its stream; arguments as of ``engine_body``."""
        if self._request is not request:
            body = await self.turns.run(engine_body(request, salt), request.caller.tenant.id)
            self._request, self._body = request, body
        return self._body

    def drop(self) -> None:
        """Free the body."""
        self._request, self._body = None, b""


def fitted(request: ChatRequest, room: int) -> Portioned[ChatRequest]:
    """A request for at most ``room`` tokens: agents repeat a refused one with other tools, uncached."""
    lowered = {name: room for name in _ANSWER_LIMITS if (whole(request.fields.get(name)) or 0) > room}
    if not lowered:
        return request
    body = yield from with_members(request.body, request.fields, dict.fromkeys(lowered, b"%d" % room))
    return msgspec.structs.replace(request, body=body, fields={**request.fields, **lowered})


def engine_body(request: ChatRequest, salt: str | None) -> Portioned[bytes]:
    """The body to send to a replica; the same for every attempt.

    Args:
        request: The request.
        salt: The ``cache_salt`` of its prefix space; None leaves the client's own.
    """
    body = request.body
    if request.stream:
        body = yield from asking_for_usage(body, request.fields)
    if salt is not None:
        body = yield from salted(body, request.fields, salt)
    return body


def asking_for_usage(body: bytes, fields: Mapping[str, Any]) -> Portioned[bytes]:
    """The body of a streaming request with the usage chunk requested.

    Of several ``stream_options`` only the last is changed: parsers take the last one.

    Args:
        body: A valid JSON object.
        fields: The same, parsed.
    """
    if _OPTIONS not in fields:
        return inserted(body, _ASKING)
    options = fields[_OPTIONS]
    if isinstance(options, dict) and options.get("include_usage") is True:
        return body
    start, end = yield from last_member_value(body, _OPTIONS)
    asking = (yield from _asking(body[start:end], options)) if isinstance(options, dict) else _ASK
    return spliced(body, [(start, end, asking)])


def salted(body: bytes, fields: Mapping[str, Any], salt: str) -> Portioned[bytes]:
    """A body with this ``cache_salt`` in place of the client's own, however often the client gave one.

    Args:
        body: A valid JSON object.
        fields: The same, parsed.
        salt: Base64url.
    """
    return (yield from with_members(body, fields, {"cache_salt": b'"%b"' % salt.encode()}))


def _asking(options: bytes, parsed: Mapping[str, Any]) -> Portioned[bytes]:
    """The value of ``stream_options``, an object, asking for usage."""
    members = {"include_usage": b"true"}
    if "continuous_usage_stats" in parsed:
        # The engine applies continuous_usage_stats only together with include_usage: a client that set just the former
        # gets no usage at all, and must not get any now.
        members["continuous_usage_stats"] = b"false"
    return (yield from with_members(options, parsed, members))
