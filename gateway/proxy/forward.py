"""Sends a request to a replica, and its answer to the client."""

import asyncio
from collections.abc import Callable

from gateway.core.outcome import Ending, Outcome
from gateway.core.ports import Sink
from gateway.core.request import ChatRequest
from gateway.fleet.replica import InflightRequest, Replica
from gateway.http_client import HttpClient, NotConnected, TransportError
from gateway.proxy.headers import upstream_headers
from gateway.proxy.response import ForwardOptions, ResponseRelay


class Forwarder:
    """Forwards requests to replicas.

    Args:
        client: Connections to the replicas.
        forward_authorization: Whether a client's ``authorization`` is passed to replicas without one of their own.
        first_byte_timeout_seconds: Maximum wait for the first byte of an answer's body.
        chunk_timeout_seconds: Maximum pause within an answer, exceeded by an eighth at most.
        max_answer_bytes: Answers up to this size are kept until the request is settled.
    """

    def __init__(
        self,
        client: HttpClient,
        *,
        forward_authorization: bool,
        first_byte_timeout_seconds: float,
        chunk_timeout_seconds: float,
        max_answer_bytes: int,
    ) -> None:
        self._client = client
        self._forward_authorization = forward_authorization
        self._first_byte_timeout = first_byte_timeout_seconds
        self._chunk_timeout = chunk_timeout_seconds
        self._max_answer_bytes = max_answer_bytes

    async def forward(
        self,
        request: ChatRequest,
        replica: Replica,
        rank: int,
        sink: Sink,
        *,
        options: ForwardOptions,
        on_first_byte: Callable[[], None],
        on_started: Callable[[], None],
        withhold: Callable[[Ending, int | None, bool], bool],
    ) -> Outcome:
        """Forward one request; never raises for a failure of the replica or of the client.

        An answer that breaks after its beginning is ended with an error event. One that breaks before is not
        answered at all: ``Outcome.started`` is false and the caller decides what the client gets. A stream begins with
        the first whole event of its body, not with its head.

        Args:
            request: The client's request.
            replica: The chosen replica.
            rank: The chosen data-parallel rank.
            sink: Receives the answer.
            options: Body, headers and deadline of this attempt.
            on_first_byte: Called once when the first byte of a stream has come.
            on_started: Called once when the client is about to get the first event of a stream.
            withhold: Called with the ending, the status and whether the client has got anything, before a failure is
                sent to the client. True: nothing is sent, because the request is retried.
        """

        clock = asyncio.get_running_loop().time

        def taken() -> None:
            # No reference to the attempt, which has one to this function: a cycle would keep the request in memory
            # until the garbage collector runs.
            if not flight.called_back:
                timeout.reschedule(min(clock() + 1.125 * self._chunk_timeout, options.deadline))

        attempt = ResponseRelay(
            sink, options, on_first_byte, taken, request, max_answer_bytes=self._max_answer_bytes, on_started=on_started
        )
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
        timeout = asyncio.timeout_at(min(attempt.now() + self._first_byte_timeout, options.deadline))
        flight = InflightRequest(timeout, attempt.now())
        try:
            async with timeout:
                replica.flights.add(flight)
                body = await options.body()
                exchange = self._client.request("POST", replica.origin, path, headers, body)
                del body  # free it before the answer is complete
                async with exchange as response:
                    attempt.begin(response.status, response.headers)
                    reset_at = 0.0
                    while (piece := await response.read()) is not None:
                        flight.heard_at = now = attempt.now()
                        if now >= reset_at and not flight.called_back:
                            # Rescheduling a timer costs as much as passing a piece on: do it rarely, with a margin.
                            timeout.reschedule(min(now + 1.125 * self._chunk_timeout, options.deadline))
                            reset_at = now + 0.125 * self._chunk_timeout
                        await attempt.piece(piece)
        except TransportError as error:
            ending = Ending.NOT_CONNECTED if isinstance(error, NotConnected) else Ending.BROKEN
            attempt.problem = str(error)
        except TimeoutError:
            ending = attempt.ending_of_timeout(flight, expired=timeout.when() == options.deadline)
        except asyncio.CancelledError:
            ending = ending_of_cancellation(sink)
        finally:
            replica.flights.discard(flight)
        try:
            # The replica is done: a client that does not read the end must not keep the connection in use.
            async with asyncio.timeout(self._chunk_timeout):
                ending = await attempt.end(ending, withhold)
        except TimeoutError:
            ending = Ending.CLIENT_GONE
        except asyncio.CancelledError:
            ending = ending_of_cancellation(sink)
        return attempt.outcome(ending)


def ending_of_cancellation(sink: Sink) -> Ending:
    """To be called in ``except CancelledError``: the ending for a disconnect or a shutdown, else re-raises."""
    if not (sink.gone or sink.interrupted):
        raise  # noqa: PLE0704 - re-raises the CancelledError being handled
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    return Ending.CLIENT_GONE if sink.gone else Ending.INTERRUPTED
