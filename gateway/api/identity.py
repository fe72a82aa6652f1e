"""Which session and which agent a request belongs to, from what clients send without being configured.

The table has every header and body field that is read, in the order of precedence. A value that is no text, is longer
than ``_LONGEST`` or holds what cannot be printed counts as missing, so that the next one is used.
"""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

import orjson

from gateway.core.api_keys import redacted
from gateway.core.request import NO_IDENTITY, RequestIdentity

_LONGEST, _SHOWN_CHARS = 4096, 128


_Kind = Literal["session", "group", "person"]

_SESSIONS: tuple[tuple[bytes | str, tuple[str, ...], _Kind], ...] = (
    (b"x-session-id", (), "session"),  # opencode, and every client that is configured to send it
    (b"x-claude-code-session-id", (), "session"),
    (b"session-id", (), "session"),  # Codex
    (b"session_id", (), "session"),  # pi
    (b"x-session-affinity", (), "session"),  # opencode
    ("metadata", ("user_id", "session_id"), "session"),  # Claude Code: JSON in a string
    ("conversation", (), "session"),  # Responses: the id, or an object with it
    ("conversation", ("id",), "session"),
    ("prompt_cache_key", (), "group"),  # Codex and pi: the session; others: one for many
    (b"x-correlation-id", (), "group"),  # of a conversation, or of one request
    ("metadata", ("user_id",), "person"),
    ("user", (), "person"),
)
"""Headers as bytes, body fields as text with the members to look into. A group is what an application keeps together,
often several conversations; a person has many, and is not shown. ``previous_response_id`` differs from turn to turn."""

_AGENTS = b"x-claude-code-agent-id", b"thread-id", b"x-openai-subagent"
_PARENT_AGENTS = b"x-claude-code-parent-agent-id", b"x-codex-parent-thread-id"
_HEADERS = frozenset({name for name, _, _ in _SESSIONS if isinstance(name, bytes)}.union(_AGENTS, _PARENT_AGENTS))
_FIELDS = frozenset(name for name, _, _ in _SESSIONS if isinstance(name, str))


def identity_of(headers: Mapping[bytes, bytes], fields: Mapping[str, Any]) -> RequestIdentity:
    """The identity of a request.

    Args:
        headers: The last header of each name, names in lower case.
        fields: The body as the client sent it, parsed.
    """
    if _HEADERS.isdisjoint(headers) and _FIELDS.isdisjoint(fields):
        return NO_IDENTITY
    for name, members, kind in _SESSIONS:
        given = headers.get(name) if isinstance(name, bytes) else fields.get(name)
        if given is not None and (value := _name(given, members)):
            return _identity(headers, value, kind)
    return _identity(headers, "", "session")


def _identity(headers: Mapping[bytes, bytes], value: str, kind: _Kind) -> RequestIdentity:
    agent, parent = _agent(headers, _AGENTS, value), _agent(headers, _PARENT_AGENTS, value)
    return RequestIdentity("" if kind == "person" else value, agent, parent, value, kind == "session")


def _agent(headers: Mapping[bytes, bytes], names: Sequence[bytes], session: str) -> str:
    for name in names:
        # Codex names its main thread like the session: that is no agent of its own.
        if name in headers and (agent := _name(headers[name])) not in ("", session):
            return agent
    return ""


def _name(value: object, members: Sequence[str] = ()) -> str:
    """A name that a client chose; empty for what cannot be one."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    for member in members:
        value = _object(value).get(member)
    return _shown(value) if isinstance(value, str) and len(value) <= _LONGEST else ""


def _object(value: object) -> Mapping[str, Any]:
    """An object, also as JSON in a string; empty for everything else."""
    if isinstance(value, str) and value.startswith("{") and len(value) <= _LONGEST:
        with contextlib.suppress(orjson.JSONDecodeError):
            value = orjson.loads(value)
    return value if isinstance(value, dict) else {}


@lru_cache(maxsize=1024)
def _shown(value: str) -> str:
    """The value; a long one, or one that holds a key, ends with a hash, so that it still is another one than others."""
    if not value.isprintable():
        return ""
    safe = redacted(value)
    if safe == value and len(value) <= _SHOWN_CHARS:
        return value
    return f"{safe[:_SHOWN_CHARS]}…{hashlib.blake2b(value.encode(), digest_size=8).hexdigest()}"
