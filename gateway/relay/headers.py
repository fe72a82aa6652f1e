"""Which headers travel on."""

from collections.abc import Iterable, Sequence

# RFC 9110, section 7.6.1, and the older names that proxies still see.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

# host and content-length belong to the connection; expect was answered by this server; accept-encoding is dropped
# because the gateway reads the answer (usage) and does not unpack it.
_REQUEST_DROPPED = _HOP_BY_HOP | {"accept-encoding", "content-length", "expect", "host", "x-request-id"}

# This server writes its own date and length.
_RESPONSE_DROPPED = _HOP_BY_HOP | {"content-length", "date", "x-request-id"}


def upstream_headers(
    headers: Iterable[tuple[str, str]], request_id: str, authorization: str | None, *, forward_authorization: bool
) -> list[tuple[str, str]]:
    """Headers of the request to the replica.

    Args:
        headers: The client's, names in lower case.
        request_id: Sent as ``x-request-id``, so that the engine's log names the same request.
        authorization: The replica's own credential; goes before the client's.
        forward_authorization: Whether the client's credential travels on when the replica has none of its own.
    """
    given = list(headers)
    dropped = _REQUEST_DROPPED | _named_by_connection(given)
    if authorization is not None or not forward_authorization:
        dropped |= {"authorization"}
    kept = [(name, value) for name, value in given if name not in dropped]
    kept.append(("x-request-id", request_id))
    if authorization is not None:
        kept.append(("authorization", authorization))
    return kept


def client_headers(headers: Iterable[tuple[str, str]], own: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of the answer to the client: the replica's end-to-end headers, then the gateway's own."""
    given = list(headers)
    dropped = _RESPONSE_DROPPED | _named_by_connection(given)
    # The replica may not speak in the gateway's name.
    dropped |= {name.decode() for name, _ in own}
    return [(n.encode("latin-1"), v.encode()) for n, v in given if n not in dropped] + list(own)


def _named_by_connection(headers: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Headers the sender declares to be for this connection only."""
    values = [value for name, value in headers if name == "connection"]
    return frozenset(token.strip().lower() for value in values for token in value.split(","))
