"""Sends a request to a replica, and its answer to the client."""

import asyncio
import math

from gateway.core.outcome import Ending
from gateway.core.ports import Sink
from gateway.core.request import ChatRequest
from gateway.fleet.replica import Replica
from gateway.http_client import HttpClient
from gateway.proxy.endings import ending_of_cancellation
from gateway.proxy.forwarded_attempt import AnswerLimits, ForwardedAttempt
from gateway.proxy.headers import upstream_headers
from gateway.proxy.response import ResponseRelay

_GAP_SECONDS = 0.01
"""Least time between two looks, which take time in proportion to all that wait: clients with very short deadlines must
not cause more of them. Only a deadline that soon after a look is seen late."""


class Deadlines:
    """Looks whose time is over.

    A deadline is moved by storing it, without touching the timer: the timer fires in time also for one that is moved to
    ``least_seconds`` from the moment of the move. A timer for each that waits would be set two or three times and
    cancelled for every request.

    Args:
        least_seconds: Least time that a moved deadline lies ahead, unless it is later than what it was before.

    Attributes:
        discard: To be called with what is to be watched no longer. The timer stays: most often something else waits
            when it fires.
    """

    def __init__(self, least_seconds: float) -> None:
        self._least_seconds = least_seconds
        self._watched: set[ResponseRelay] = set()
        self.discard = self._watched.discard
        self._due = math.inf
        self._next_look_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watched: ResponseRelay, now: float) -> None:
        """Watch something from ``now`` on, in the loop's time."""
        self._watched.add(watched)
        due = max(min(watched.until, now + self._least_seconds), self._next_look_at)
        if due < self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._set(due)

    def _set(self, due: float) -> None:
        self._due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._fired)

    def _fired(self) -> None:
        self._timer, self._due = None, math.inf
        now = asyncio.get_running_loop().time()
        self._next_look_at = now + _GAP_SECONDS
        nearest = now + self._least_seconds
        for each in list(self._watched):
            if each.until <= now:
                self._watched.discard(each)
                each.time_over(now)
            elif each.until < nearest:
                nearest = each.until
        if self._watched:
            self._set(max(nearest, self._next_look_at))


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
        path = (request.path or request.endpoint) + (f"?{request.query.decode('latin-1')}" if request.query else "")
        relay = ResponseRelay(request, sink, attempt, self._limits)
        relay.client_key = self._forward_authorization and replica.authorization is None
        if attempt.deadline <= relay.sent_at:
            relay.received(Ending.EXPIRED)  # a replica would compute an answer that cannot be sent
            return relay
        self._deadlines.add(relay, relay.sent_at)
        replica.flights.add(relay)
        try:
            body = request.body if request.method == "POST" else b""  # as it came
            if request.stream or attempt.salt is not None:
                body = await attempt.body.of(request, attempt.salt)
            if not relay.ended.done():  # its time may be over, or its replica gone, since making the body began
                relay.exchange = self._client.send(
                    request.method, replica.origin, path, headers, body, relay, fresh=attempt.is_retry
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
