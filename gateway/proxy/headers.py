"""Headers of requests to replicas and of answers to clients."""

from collections.abc import Container, Iterable, Sequence

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

# Where clients of other APIs (Anthropic, Azure, Google, AWS) and browsers put their keys.
_CREDENTIALS = b"api-key cookie ocp-apim-subscription-key x-amz-security-token x-api-key x-auth-token x-goog-api-key"

# This server writes its own date and length.
_RESPONSE_DROPPED = _HOP_BY_HOP | {b"content-length", b"date"}

# W3C Trace Context.
_TRACE = frozenset({b"traceparent", b"tracestate"})

_NOT_FORWARDED = {
    (authorization, trace): _REQUEST_DROPPED
    | (frozenset(_CREDENTIALS.split()) | {b"authorization"} if authorization else frozenset())
    | (_TRACE if trace else frozenset())
    for authorization in (False, True)
    for trace in (False, True)
}
"""Names of a client's headers that do not go to the replica, by whether its credentials and its trace are dropped."""

_NONE: Container[bytes] = ()

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
        forward_authorization: Whether the client's credentials are passed to a replica without one of its own.
    """
    dropped = _NOT_FORWARDED[authorization is not None or not forward_authorization, trace is not None]
    kept = _end_to_end(headers, dropped, _NONE)
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
    kept = _end_to_end(headers, _RESPONSE_DROPPED, dict(own))
    kept += own
    return kept


def _end_to_end(headers: Headers, dropped: Container[bytes], replaced: Container[bytes]) -> list[tuple[bytes, bytes]]:
    """The headers that are passed on: without those named, and those that the sender declares to be for this connection
    only."""
    kept = []
    connection: list[bytes] = []
    for header in headers:
        name = header[0]
        if name not in dropped and name not in replaced:
            kept.append(header)
        elif name == b"connection" and header[1] != b"keep-alive":  # which most clients send
            connection.append(header[1])
    if connection:
        named = {token.strip().lower() for value in connection for token in value.split(b",")}
        kept = [header for header in kept if header[0] not in named]
    return kept
