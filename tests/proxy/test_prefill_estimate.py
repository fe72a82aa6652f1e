"""The prompt of a request that is not streamed counts as computed once its prefill should have ended."""

import asyncio

import pytest
from pieces import asking
from relaying import NoEvents

from gateway.core.outcome import Ending
from gateway.proxy import AnswerLimits, ForwardOptions
from gateway.proxy.request_body import EngineBody
from gateway.proxy.response import ResponseRelay
from gateway.turns import Turns

BODY = b'{"usage":null}'


class Prefills(NoEvents):
    ended = 0

    def prefill_done(self):
        self.ended += 1


class Client:
    """A client that reads everything."""

    gone = interrupted = congested = False


def waiting(prefill_seconds, first_byte_seconds=60.0):
    """A relay whose answer has not begun, and what happens during its attempt."""
    options = ForwardOptions(
        EngineBody(Turns()), None, (), None, deadline=1e9, retry_after_seconds=1, prefill_seconds=prefill_seconds
    )
    events = Prefills()
    limits = AnswerLimits(first_byte_seconds, 60.0, max_answer_bytes=1000)
    return ResponseRelay(asking(stream=False), Client(), options, events, limits), events


async def test_the_prefill_ends_while_the_answer_is_waited_for():
    relay, events = waiting(0.001)
    await asyncio.sleep(0.05)
    assert events.ended == 1
    assert not relay.ended.done()
    relay.response_begun(200, [(b"content-type", b"application/json")])
    relay.body_received(BODY)
    relay.response_complete()
    assert relay.received(await relay.ended).ending is Ending.COMPLETE
    relay.close()


@pytest.mark.parametrize("prefill_seconds", [0.0, 0.001, 1000.0])
async def test_the_first_byte_has_its_time_limit_with_any_estimate(prefill_seconds):
    relay, events = waiting(prefill_seconds, first_byte_seconds=0.02)
    assert await asyncio.wait_for(relay.ended, 10) is Ending.TIMED_OUT
    assert events.ended == 1
    relay.close()


async def test_a_replica_that_goes_down_during_the_prefill_ends_the_attempt():
    relay, _ = waiting(1000.0)
    relay.flight.call_back()
    assert await asyncio.wait_for(relay.ended, 10) is Ending.BROKEN
    relay.close()
