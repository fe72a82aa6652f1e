"""Headers of requests to replicas and of answers to clients."""

from collections.abc import Iterable, Sequence

Headers = Iterable[tuple[bytes, bytes]]
"""Names in lower case, values unchanged."""

# RFC 9110, section 7.6.1, and the older names that proxies still see.
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

# host and content-length belong to the connection; expect was answered by this server; without accept-encoding the
# answer is uncompressed, because the gateway reads its usage.
_REQUEST_DROPPED = _HOP_BY_HOP | {b"accept-encoding", b"content-length", b"expect", b"host", b"x-request-id"}

# This server writes its own date and length.
_RESPONSE_DROPPED = _HOP_BY_HOP | {b"content-length", b"date"}


# W3C Trace Context.
_TRACE = frozenset({b"traceparent", b"tracestate"})

_RANK = b"x-data-parallel-rank"
"""vLLM and SGLang compute a request at the data-parallel rank that this header names."""

_LONGEST_RANK = 9
"""Digits beyond which a number is no rank."""


def asked_rank(headers: Headers) -> int | None:
    """The data-parallel rank that a client requests; None without the header or if it is not a number."""
    for name, value in headers:
        if name == _RANK:
            return int(value) if value.isdigit() and len(value) <= _LONGEST_RANK else None
    return None


def upstream_headers(
    headers: Headers,
    request_id: bytes,
    authorization: bytes | None,
    rank: bytes | None,
    trace: Sequence[tuple[bytes, bytes]] | None,
    *,
    forward_authorization: bool,
) -> list[tuple[bytes, bytes]]:
    """Headers of the request to the replica.

    Args:
        headers: The client's headers.
        request_id: Sent as ``x-request-id``, so that the engine's log names the same request.
        authorization: The replica's own credential; takes precedence over the client's.
        rank: The chosen data-parallel rank, None for a replica with one rank; the client's choice takes precedence.
        trace: Replaces the client's trace context; None passes that through.
        forward_authorization: Whether the client's credential is passed to a replica without one of its own.
    """
    dropped = _REQUEST_DROPPED | _named_by_connection(headers)
    if authorization is not None or not forward_authorization:
        dropped |= {b"authorization"}
    if trace is not None:
        dropped |= _TRACE
    kept = [header for header in headers if header[0] not in dropped]
    kept += [(b"accept-encoding", b"identity"), (b"x-request-id", request_id)]
    if authorization is not None:
        kept.append((b"authorization", authorization))
    if rank is not None and all(name != _RANK for name, _ in headers):
        kept.append((_RANK, rank))
    if trace is not None:
        kept.extend(trace)
    return kept


def client_headers(headers: Headers, own: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of the answer to the client: the replica's end-to-end headers, then the gateway's own.

    A replica's header with the name of one of the gateway's is dropped.
    """
    dropped = _RESPONSE_DROPPED.union([name for name, _ in own], _named_by_connection(headers))
    return [header for header in headers if header[0] not in dropped] + list(own)


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    """Headers the sender declares to be for this connection only."""
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection":
            named = named.union([token.strip().lower() for token in value.split(b",")])
    return named
