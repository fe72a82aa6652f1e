"""W3C Trace Context: which trace a client says its request belongs to, and how that is said to an engine.

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
"""Sampled, and that the trace id is random; whatever else stands there has no meaning yet and is cleared."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INVALID_VERSION = b"ff"
_FIRST_VERSION = b"00"


@dataclass(frozen=True, slots=True)
class Parent:
    """The caller's span.

    Attributes:
        trace_id: Of the whole trace.
        span_id: Of the caller's span.
        flags: Its trace flags.
        state: Its ``tracestate``, as it came; empty for none.
    """

    trace_id: int
    span_id: int
    flags: int
    state: str


def parent_of(headers: Iterable[Header]) -> Parent | None:
    """The caller's span; None if it named none, or not as the specification wants it.

    Args:
        headers: The request's, names in lower case.
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
    """The headers by which a request is said to be caused by a span."""
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
