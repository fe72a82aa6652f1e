"""Sends a request to a replica, and its answer to the client."""

import asyncio

from gateway.core.outcome import Outcome
from gateway.core.ports import Sink
from gateway.core.request import ChatRequest
from gateway.fleet.replica import Replica
from gateway.http_client import HttpClient
from gateway.proxy.endings import ending_of_cancellation
from gateway.proxy.forward_options import AnswerLimits, AttemptEvents, ForwardOptions
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

    def relay(self, request: ChatRequest, sink: Sink, options: ForwardOptions, events: AttemptEvents) -> ResponseRelay:
        """The answer of an attempt that is to be forwarded.

        Args:
            request: The client's request.
            sink: Receives the answer.
            options: Body, headers and deadline of this attempt.
            events: Gets what happens during the attempt.
        """
        return ResponseRelay(request, sink, options, events, self._limits)

    async def forward(self, relay: ResponseRelay, replica: Replica, rank: int) -> Outcome:
        """Forward one request up to the end of its answer; never raises for a failure of the replica or of the client.

        The client has got the answer without its end, and nothing of an answer that broke before its beginning:
        ``Outcome.started`` is false then. The caller decides whether the request is retried or ``ResponseRelay.finish``
        writes the end. A stream begins with the first whole event of its body, not with its head.

        Args:
            relay: Its answer.
            replica: The chosen replica.
            rank: The chosen data-parallel rank.
        """
        request, options = relay.request, relay.options
        headers = upstream_headers(
            request.headers,
            request.request_id.encode(),
            replica.authorization,
            replica.rank_header(rank),
            options.trace_headers,
            forward_authorization=self._forward_authorization,
        )
        path = f"{request.endpoint}?{request.query.decode('latin-1')}" if request.query else request.endpoint
        replica.flights.add(relay.flight)
        try:
            body = await options.body.of(request, options.salt)
            relay.exchange = self._client.send("POST", replica.origin, path, headers, body, relay)
            del body  # free it before the answer is complete
            ending = await relay.ended
        except asyncio.CancelledError:
            ending = ending_of_cancellation(relay.sink)
        finally:
            relay.close()
            replica.flights.discard(relay.flight)
        return relay.received(ending)
