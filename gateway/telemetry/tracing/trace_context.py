"""W3C Trace Context: decodes the headers of requests, and encodes headers for engines.

Source: W3C Recommendation "Trace Context", sections 3.2 (``traceparent``) and 3.3 (``tracestate``).
"""

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Header = tuple[bytes, bytes]

SAMPLED = 0x01
"""Flag: the caller recorded its part of the trace."""

_KEPT_FLAGS = 0x03
"""Sampled, and random trace id; the other flags are undefined and cleared."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INVALID_VERSION = b"ff"
_FIRST_VERSION = b"00"


@dataclass(frozen=True, slots=True)
class Parent:
    """The caller's span.

    Attributes:
        trace_id: Trace id.
        span_id: Span id.
        flags: Trace flags.
        state: ``tracestate``, unchanged; empty for none.
    """

    trace_id: int
    span_id: int
    flags: int
    state: str


def parent_of(headers: Iterable[Header]) -> Parent | None:
    """The caller's span; None if the headers are missing or invalid.

    Args:
        headers: The request's headers, names in lower case.
    """
    parents: list[bytes] = []
    states: list[bytes] = []
    for name, value in headers:
        if name == b"traceparent":
            parents.append(value)
        elif name == b"tracestate":
            states.append(value)
    match = _TRACEPARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == _INVALID_VERSION or (version == _FIRST_VERSION and more is not None):
        return None
    parent = Parent(
        int(trace_id, 16), int(span_id, 16), int(flags, 16) & _KEPT_FLAGS, b",".join(states).decode("latin-1")
    )
    return parent if parent.trace_id and parent.span_id else None


def trace_headers(trace_id: int, span_id: int, flags: int, state: str) -> Sequence[Header]:
    """The headers that name a span as the parent of a request."""
    headers = [(b"traceparent", b"00-%032x-%016x-%02x" % (trace_id, span_id, flags))]
    if state:
        headers.append((b"tracestate", state.encode("latin-1")))
    return headers


def new_trace_id() -> int:
    """A random id for a trace."""
    return random.getrandbits(128) or 1


def new_span_id() -> int:
    """A random id for a span."""
    return random.getrandbits(64) or 1
