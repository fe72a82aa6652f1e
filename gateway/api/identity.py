"""Which session and which agent a request belongs to, from what clients send without being configured.

The table has every header and body field that is read, in the order of precedence. A value that is no text, is longer
than ``_LONGEST`` or holds what cannot be printed counts as missing, so that the next one is used.
"""

import hashlib
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any

import orjson

from gateway.core.api_keys import redacted
from gateway.core.request import NO_IDENTITY, Identity

_LONGEST = 512
_SHOWN_CHARS = 128
_LONGEST_METADATA = 4096

Headers = Mapping[bytes, bytes]
Fields = Mapping[str, Any]


class _Kind(Enum):
    SESSION = "one conversation, with its subagents"
    GROUP = "what an application keeps together: often several conversations"
    PERSON = "a user, with all conversations; never shown"


_SESSIONS: tuple[tuple[bytes | str, _Kind], ...] = (
    (b"x-session-id", _Kind.SESSION),  # opencode, and any client that is told to
    (b"x-claude-code-session-id", _Kind.SESSION),
    (b"session-id", _Kind.SESSION),  # Codex
    (b"session_id", _Kind.SESSION),  # pi
    (b"x-session-affinity", _Kind.SESSION),  # opencode
    ("metadata.user_id.session_id", _Kind.SESSION),  # Claude Code: JSON in a string
    ("conversation", _Kind.SESSION),  # Responses: the id, or an object with it
    ("conversation.id", _Kind.SESSION),
    ("prompt_cache_key", _Kind.GROUP),  # Codex and pi: the session; others: one for many
    (b"x-correlation-id", _Kind.GROUP),  # of a conversation, or of one request
    ("metadata.user_id", _Kind.PERSON),
    ("user", _Kind.PERSON),
)
"""Headers as bytes, body fields as text. ``previous_response_id`` is none of them: it is another one in every turn."""

_AGENTS = b"x-claude-code-agent-id", b"thread-id", b"x-openai-subagent"
_PARENT_AGENTS = b"x-claude-code-parent-agent-id", b"x-codex-parent-thread-id"
_HEADERS = frozenset({name for name, _ in _SESSIONS if isinstance(name, bytes)}.union(_AGENTS, _PARENT_AGENTS))
_FIELDS = frozenset(name.partition(".")[0] for name, _ in _SESSIONS if isinstance(name, str))


def identity_of(headers: Headers, fields: Fields) -> Identity:
    """The identity of a request.

    Args:
        headers: The last header of each name, names in lower case.
        fields: The body as the client sent it, parsed.
    """
    if _HEADERS.isdisjoint(headers) and _FIELDS.isdisjoint(fields):
        return NO_IDENTITY
    found = (
        (_header(headers, name) if isinstance(name, bytes) else _field(fields, name), kind) for name, kind in _SESSIONS
    )
    value, kind = next((each for each in found if each[0]), ("", _Kind.SESSION))
    # Codex names its main thread like the session, which is no agent of its own.
    agent, parent = (
        next((agent for name in names if (agent := _header(headers, name)) and agent != value), "")
        for names in (_AGENTS, _PARENT_AGENTS)
    )
    shown = "" if kind is _Kind.PERSON else value
    return Identity(shown, agent, parent, affinity=value, is_exact=kind is _Kind.SESSION)


def _header(headers: Headers, name: bytes) -> str:
    value = headers.get(name)
    return "" if value is None else _printable(value.decode("utf-8", "surrogateescape"))


def _field(fields: Fields, name: str) -> str:
    outer, *inner = name.split(".")
    value = fields.get(outer)
    for member in inner:
        value = _object(value).get(member)
    return _printable(value)


def _object(value: object) -> Mapping[str, Any]:
    """An object, also as JSON in a string; empty for everything else."""
    if isinstance(value, str) and value.startswith("{") and len(value) <= _LONGEST_METADATA:
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return {}
    return value if isinstance(value, dict) else {}


def _printable(value: object) -> str:
    return _shown(value) if isinstance(value, str) and len(value) <= _LONGEST else ""


@lru_cache(maxsize=4096)
def _shown(value: str) -> str:
    """The value; a long one, or one that holds a key, ends with a hash, so that it still is another one than others."""
    value = value.strip()
    if not value.isprintable():
        return ""
    safe = redacted(value)
    if safe == value and len(value) <= _SHOWN_CHARS:
        return value
    digest = hashlib.blake2b(value.encode(), digest_size=8).hexdigest()
    return f"{safe[:_SHOWN_CHARS]}…{digest}"
