"""Auxiliary calls to the engines: a prompt's token ids, a model's card."""

import time
from collections.abc import Sequence

from gateway.core.ids import ModelId, ReplicaId
from gateway.core.ports import EngineUnavailable
from gateway.engines import MAX_DOCUMENT_BYTES
from gateway.fleet.failures import log_ejection
from gateway.fleet.fleet import Fleet
from gateway.fleet.replica import Replica
from gateway.http_client import HttpClient, ResponseTooLarge, TransportError

_TRIES = 2
"""Most replicas asked, one after another."""

_MAX_TOKENS_BYTES = 8 * 2**20
"""Limit of a response with a prompt's token ids. A million tokens take 7 MiB."""


class EngineCalls:
    """An ``EngineCaller``: asks the least loaded replica, and another one if it does not answer.

    An ``EngineReader`` as well.
    """

    def __init__(self, fleet: Fleet, client: HttpClient) -> None:
        self._fleet = fleet
        self._client = client

    async def ask(
        self, model: ModelId, path: str, body: bytes, timeout_seconds: float, regions: frozenset[str] = frozenset()
    ) -> bytes:
        """See ``EngineCaller``."""
        problem = "no replica is up"
        tried: set[ReplicaId] = set()
        for _ in range(_TRIES):
            replicas = self._fleet.routable(model, time.monotonic(), tried, regions)
            if not replicas:
                break
            replica = min(replicas, key=lambda r: r.requests)
            tried.add(replica.id)
            headers = [(b"content-type", b"application/json"), *credentials(replica)]
            began = time.monotonic()
            try:
                status, answer = await self._client.fetch(
                    "POST",
                    replica.origin,
                    path,
                    headers,
                    body,
                    timeout_seconds=timeout_seconds,
                    max_bytes=_MAX_TOKENS_BYTES,
                )
            except ResponseTooLarge as failure:
                raise EngineUnavailable(f"{replica.id}: {failure}") from failure  # others would answer the same
            except TransportError as failure:
                problem = f"{replica.id}: {failure}"
                if replica.breaker.failed(now := time.monotonic(), began):
                    log_ejection(replica, now)
                continue
            if status != 200:
                raise EngineUnavailable(f"{replica.id} answered {status} to {path}", status)
            return answer
        raise EngineUnavailable(problem)

    async def read(self, replica: ReplicaId, path: str, timeout_seconds: float) -> bytes:
        """See ``EngineReader``."""
        of_id = self._fleet.find(replica)
        if of_id is None:
            raise EngineUnavailable(f"{replica} has left the fleet")
        try:
            status, answer = await self._client.fetch(
                "GET",
                of_id.origin,
                path,
                credentials(of_id),
                timeout_seconds=timeout_seconds,
                max_bytes=MAX_DOCUMENT_BYTES,
            )
        except TransportError as failure:
            raise EngineUnavailable(f"{replica}: {failure}") from failure
        if status != 200:
            raise EngineUnavailable(f"{replica} answered {status} to {path}", status)
        return answer


def credentials(replica: Replica) -> Sequence[tuple[bytes, bytes]]:
    """Authorization headers of the gateway's own calls to a replica."""
    return [] if replica.authorization is None else [(b"authorization", replica.authorization)]
