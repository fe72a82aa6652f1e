"""Sends a request to a replica, and its answer to the client."""

import asyncio

from gateway.core.outcome import Ending
from gateway.core.ports import Sink
from gateway.core.request import ChatRequest
from gateway.fleet.replica import Replica
from gateway.http_client import HttpClient
from gateway.proxy.deadlines import Deadlines
from gateway.proxy.endings import ending_of_cancellation
from gateway.proxy.forwarded_attempt import AnswerLimits, ForwardedAttempt
from gateway.proxy.headers import upstream_headers
from gateway.proxy.response import ResponseRelay


class Forwarder:
    """Forwards requests to replicas.

    Args:
        client: Connections to the replicas.
        forward_authorization: Whether a client's ``authorization`` is passed to replicas without one of their own.
        limits: Limits of every answer.
    """

    def __init__(self, client: HttpClient, *, forward_authorization: bool, limits: AnswerLimits) -> None:
        self._client = client
        self._forward_authorization = forward_authorization
        self._limits = limits
        self._deadlines = Deadlines(limits.chunk_timeout_seconds)

    async def forward(
        self, request: ChatRequest, sink: Sink, attempt: ForwardedAttempt, replica: Replica, rank: int
    ) -> ResponseRelay:
        """Forward one request up to the end of its answer; never raises for a failure of the replica or of the client.

        The client has got the answer without its end, and nothing of an answer that broke before its beginning:
        ``ResponseRelay.started`` is false then. The caller decides whether the request is retried or
        ``ResponseRelay.finish`` writes the end. A stream begins with the first whole record of its body, not with its
        head, and is retried until its first content.

        Args:
            request: The client's request.
            sink: Receives the answer.
            attempt: Body, headers and deadline of this attempt; gets what happens during it.
            replica: The chosen replica.
            rank: The chosen data-parallel rank.

        Returns:
            The answer.
        """
        headers = upstream_headers(
            request.headers,
            request.request_id.encode(),
            replica.authorization,
            replica.rank_header(rank) if len(replica.targets) > 1 else None,
            attempt.trace_headers,
            forward_authorization=self._forward_authorization,
        )
        path = f"{request.endpoint}?{request.query.decode('latin-1')}" if request.query else request.endpoint
        relay = ResponseRelay(request, sink, attempt, self._limits)
        relay.client_key = self._forward_authorization and replica.authorization is None
        if attempt.deadline <= relay.sent_at:
            relay.received(Ending.EXPIRED)  # a replica would compute an answer that cannot be sent
            return relay
        self._deadlines.add(relay, relay.sent_at)
        replica.flights.add(relay)
        try:
            body = request.body  # as it came
            if request.stream or attempt.salt is not None:
                body = await attempt.body.of(request, attempt.salt)
            if not relay.ended.done():  # its time may be over, or its replica gone, since making the body began
                relay.exchange = self._client.send(
                    "POST", replica.origin, path, headers, body, relay, fresh=attempt.is_retry
                )
            del body  # free it before the answer is complete
            ending = await relay.ended
        except asyncio.CancelledError:
            ending = ending_of_cancellation(sink)
        finally:
            self._deadlines.discard(relay)
            replica.ended(relay, asyncio.get_running_loop().time())
            if relay.exchange is not None:
                relay.exchange.close()
        relay.received(ending)
        return relay
