"""Sends a request to a replica, and its answer to the client."""

import asyncio

from gateway.core.outcome import Ending, Outcome
from gateway.core.ports import Sink
from gateway.core.request import ChatRequest
from gateway.fleet.replica import InflightRequest, Replica
from gateway.http_client import HttpClient, NotConnected, TransportError
from gateway.proxy.headers import upstream_headers
from gateway.proxy.response import (
    AnswerLimits,
    AttemptEvents,
    ForwardOptions,
    ResponseRelay,
    ending_of_cancellation,
)
from gateway.tasks import in_task


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
        request, options, limits = relay.request, relay.options, self._limits
        headers = upstream_headers(
            request.headers,
            request.request_id.encode(),
            replica.authorization,
            replica.rank_header(rank),
            options.trace_headers,
            forward_authorization=self._forward_authorization,
        )
        path = f"{request.endpoint}?{request.query.decode('latin-1')}" if request.query else request.endpoint
        ending = Ending.COMPLETE
        now = relay.now()
        timeout = asyncio.timeout_at(min(now + limits.first_byte_timeout_seconds, options.deadline))
        relay.flight = flight = InflightRequest(timeout, now)
        try:
            await in_task()
            async with timeout:
                replica.flights.add(flight)
                body = await options.body.of(request, options.salt)
                exchange = self._client.request("POST", replica.origin, path, headers, body)
                del body  # free it before the answer is complete
                async with exchange as response:
                    relay.begin(response.status, response.headers)
                    extend_at = 0.0
                    while (piece := await response.read()) is not None:
                        flight.last_byte_at = now = relay.now()
                        if now >= extend_at:
                            # Rescheduling a timer costs as much as passing a piece on: do it rarely, with a margin.
                            flight.extend(relay.silence_limit())
                            extend_at = now + 0.125 * limits.chunk_timeout_seconds
                        await relay.piece(piece)
        except TransportError as error:
            ending = Ending.NOT_CONNECTED if isinstance(error, NotConnected) else Ending.BROKEN
            relay.problem = str(error)
        except TimeoutError:
            ending = relay.ending_of_timeout(expired=timeout.when() == options.deadline)
        except asyncio.CancelledError:
            ending = ending_of_cancellation(relay.sink)
        finally:
            replica.flights.discard(flight)
        return relay.received(ending)
