"""Identifiers, each with a type of its own so that one cannot be passed for another."""

import re
from typing import NamedTuple, NewType

ModelId = NewType("ModelId", str)
"""What clients send as ``model``."""

ReplicaId = NewType("ReplicaId", str)
"""Name of one engine replica: ``host:port`` unless the configuration gives an ``id``. Unique in the gateway."""

RequestId = NewType("RequestId", str)
"""The client's ``x-request-id``, or one made by the gateway."""

TenantId = NewType("TenantId", str)
"""Name of a tenant, as the configuration or a trusted proxy gives it."""

BlockHash = NewType("BlockHash", int)
"""Chained 64-bit hash of a prompt up to and including one block. It only steers routing."""


class Target(NamedTuple):
    """Where a request can be sent: one data-parallel rank of a replica. Each rank has a KV cache of its own.

    Attributes:
        replica: The replica.
        rank: The rank, 0 where there is only one.
    """

    replica: ReplicaId
    rank: int = 0


_PLAIN = re.compile(r"[A-Za-z0-9-]+")
_ANSWER = re.compile(r"(?:msg|resp|chatcmpl|cmpl)[_-](_?)(.+)")


def answer_id(kind: str, request_id: RequestId) -> str:
    """The id of the answer to a request; ``kind`` is ``msg`` or ``resp``.

    The request's id follows behind ``_``; with other characters than letters, digits and hyphens, in hexadecimal behind
    ``__``.
    """
    return f"{kind}_{request_id}" if _PLAIN.fullmatch(request_id) else f"{kind}__{request_id.encode().hex()}"


def requests_named(given: str) -> list[RequestId]:
    """The requests that a client may mean by an id: the request of that id, and the one answered under it.

    Engines form the ids of chat answers in the same way, as ``chatcmpl-`` and ``cmpl-``.
    """
    found = _ANSWER.fullmatch(given)
    try:
        answered = "" if found is None else bytes.fromhex(found[2]).decode() if found[1] else found[2]
    except ValueError:
        answered = ""
    return [RequestId(each) for each in (given, answered) if each]
