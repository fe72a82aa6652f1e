"""Auxiliary calls to the engines: a prompt's token ids, a model's card."""

import time
from collections.abc import Sequence

from gateway.relay.fleet import Fleet, Replica
from gateway.relay.http import HttpClient, TransportError
from gateway.values.ids import ModelId
from gateway.values.ports import EngineUnavailable


class EngineCalls:
    """An ``EngineCaller`` over the fleet: the least busy replica is asked."""

    def __init__(self, fleet: Fleet, client: HttpClient) -> None:
        self._fleet = fleet
        self._client = client

    async def ask(self, model: ModelId, path: str, body: bytes, timeout_seconds: float) -> bytes:
        """See ``EngineCaller``."""
        replicas = self._fleet.routable(model, time.monotonic())
        if not replicas:
            raise EngineUnavailable("no replica is up")
        replica = min(replicas, key=lambda r: r.requests)
        headers = [(b"content-type", b"application/json"), *credentials(replica)]
        try:
            status, answer = await self._client.fetch(
                "POST", replica.origin, path, headers, body, timeout_seconds=timeout_seconds
            )
        except TransportError as failure:
            raise EngineUnavailable(f"{replica.id}: {failure}") from failure
        if status != 200:
            raise EngineUnavailable(f"{replica.id} answered {status} to {path}", status)
        return answer


def credentials(replica: Replica) -> Sequence[tuple[bytes, bytes]]:
    """Headers that let the gateway's own calls in at a replica."""
    return [] if replica.authorization is None else [(b"authorization", replica.authorization)]
