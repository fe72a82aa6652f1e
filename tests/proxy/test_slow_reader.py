"""A client that does not read its answer is not taken for a failure of the replica."""

import asyncio
import contextlib

import pytest
from fleets import NOW, replica
from pieces import asking, opening, said

from gateway.core.outcome import Ending
from gateway.fleet.failures import failure_stage, record_outcome
from gateway.proxy import AnswerLimits, ForwardOptions
from gateway.proxy.request_body import EngineBody
from gateway.proxy.response import ResponseRelay
from gateway.turns import Turns

LIMITS = AnswerLimits(first_byte_timeout_seconds=60, chunk_timeout_seconds=60, max_answer_bytes=1000)


class Reader:
    """A client that takes so many pieces, and then no more."""

    gone = interrupted = False

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces

    async def start(self, status, headers):
        pass

    async def write(self, data, *, more):
        if not self.pieces:
            await asyncio.Event().wait()
        self.pieces -= 1


class NoEvents:
    def on_first_byte(self):
        pass

    def on_response_started(self):
        pass


async def timed_out(pieces):
    """The outcome of a stream whose replica sends two pieces and then no more, to a client that takes so many."""
    options = ForwardOptions(EngineBody(Turns()), None, (), None, deadline=1e9, retry_after_seconds=1)
    relay = ResponseRelay(asking(), Reader(pieces), options, NoEvents(), LIMITS)
    relay.begin(200, [(b"content-type", b"text/event-stream")])
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await relay.piece(opening())
            await relay.piece(said("a"))
            await asyncio.Event().wait()
    return relay.received(relay.ending_of_timeout(expired=False))


async def test_a_client_that_does_not_read_the_end_counts_as_gone():
    options = ForwardOptions(EngineBody(Turns()), None, (), None, deadline=1e9, retry_after_seconds=1)
    limits = AnswerLimits(first_byte_timeout_seconds=60, chunk_timeout_seconds=0.01, max_answer_bytes=1000)
    relay = ResponseRelay(asking(), Reader(1), options, NoEvents(), limits)
    relay.begin(200, [(b"content-type", b"text/event-stream")])
    await relay.piece(opening() + b"data: [DONE]\n\n")
    assert relay.received(Ending.COMPLETE).ending is Ending.COMPLETE
    outcome = await relay.finish()
    assert outcome.ending is Ending.CLIENT_GONE
    assert failure_stage(outcome.ending, outcome.status, started=outcome.started) is None


@pytest.mark.parametrize("pieces", [0, 1])
async def test_a_client_that_reads_too_slowly_counts_as_gone(pieces):
    outcome = await timed_out(pieces)
    assert outcome.ending is Ending.CLIENT_GONE
    assert failure_stage(outcome.ending, outcome.status, started=outcome.started) is None
    at = replica("a")
    record_outcome(at, outcome, NOW, NOW)
    assert (at.breaker.failures, at.breaker.is_open(NOW)) == (0, False)


async def test_a_replica_that_falls_silent_has_failed():
    outcome = await timed_out(2)
    assert outcome.ending is Ending.TIMED_OUT
    assert failure_stage(outcome.ending, outcome.status, started=outcome.started) is not None
