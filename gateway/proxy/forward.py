"""Send a request to a replica and its answer to the client."""

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
    """Forwards requests.

    Args:
        client: Connections to the replicas.
        forward_authorization: Whether a client's ``authorization`` travels on to replicas without one of their own.
        first_byte_timeout_seconds: Longest wait for the first byte of an answer's body.
        chunk_timeout_seconds: Silence inside an answer that is borne; it is ended at most an eighth later.
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
        terms: ForwardOptions,
        on_first_byte: Callable[[], None],
        on_started: Callable[[], None],
        withhold: Callable[[Ending, int | None, bool], bool],
    ) -> Outcome:
        """Forward one request; never raises for what the replica or the client does.

        An answer that breaks after its beginning is ended with an error event. One that breaks before is not
        answered at all: ``Outcome.started`` is false and the caller decides what the client gets. A stream has begun
        with the first whole event of its body: its head says no more than that a replica is there.

        Args:
            request: What the client sent.
            replica: Where it goes.
            rank: To which of its data-parallel ranks.
            sink: Where the answer goes.
            terms: What goes with it.
            on_first_byte: Called once when the first byte of a stream has come.
            on_started: Called once when the client is about to get the first event of a stream.
            withhold: Asked before the client is told how the attempt ended (the ending, the status, whether it got
                anything before): whether it is told nothing, because the request is tried again elsewhere.
        """

        clock = asyncio.get_running_loop().time

        def taken() -> None:
            # No reference to the attempt, which has one to this function: a cycle would keep the request in memory
            # until the garbage collector runs.
            if not flight.called_back:
                timeout.reschedule(min(clock() + 1.125 * self._chunk_timeout, terms.deadline))

        attempt = ResponseRelay(
            sink, terms, on_first_byte, taken, request, max_answer_bytes=self._max_answer_bytes, on_started=on_started
        )
        headers = upstream_headers(
            request.headers,
            request.request_id.encode(),
            replica.authorization,
            replica.rank_header(rank),
            terms.trace_headers,
            forward_authorization=self._forward_authorization,
        )
        path = f"{request.endpoint}?{request.query.decode('latin-1')}" if request.query else request.endpoint
        ending = Ending.COMPLETE
        timeout = asyncio.timeout_at(min(attempt.now() + self._first_byte_timeout, terms.deadline))
        flight = InflightRequest(timeout, attempt.now())
        try:
            async with timeout:
                replica.flights.add(flight)
                body = await terms.body()
                exchange = self._client.request("POST", replica.origin, path, headers, body)
                del body  # it is not to be held until the answer is over
                async with exchange as response:
                    attempt.begin(response.status, response.headers)
                    reset_at = 0.0
                    while (piece := await response.read()) is not None:
                        flight.heard_at = now = attempt.now()
                        if now >= reset_at and not flight.called_back:
                            # Moving a timer costs as much as passing a piece on, so it is moved now and then, further.
                            timeout.reschedule(min(now + 1.125 * self._chunk_timeout, terms.deadline))
                            reset_at = now + 0.125 * self._chunk_timeout
                        await attempt.piece(piece)
        except TransportError as error:
            ending = Ending.NOT_CONNECTED if isinstance(error, NotConnected) else Ending.BROKEN
            attempt.problem = str(error)
        except TimeoutError:
            ending = attempt.ending_of_timeout(flight, expired=timeout.when() == terms.deadline)
        except asyncio.CancelledError:
            ending = ending_of_cancellation(sink)
        finally:
            replica.flights.discard(flight)
        try:
            # The replica is done; a client that does not read the end must not keep it busy.
            async with asyncio.timeout(self._chunk_timeout):
                ending = await attempt.end(ending, withhold)
        except TimeoutError:
            ending = Ending.CLIENT_GONE
        except asyncio.CancelledError:
            ending = ending_of_cancellation(sink)
        return attempt.outcome(ending)


def ending_of_cancellation(sink: Sink) -> Ending:
    """Inside ``except CancelledError``: the sink's reasons end the attempt, any other ends the task."""
    if not (sink.gone or sink.interrupted):
        raise  # noqa: PLE0704 - re-raises the CancelledError being handled
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    return Ending.CLIENT_GONE if sink.gone else Ending.INTERRUPTED
