"""A client that does not read its answer is not taken for a failure of the replica."""

import asyncio

from fleets import NOW, replica
from pieces import opening, said
from relaying import relaying

from gateway.core.outcome import Ending
from gateway.fleet.failures import failure_stage, record_outcome


class Reader:
    """A client that reads so many pieces, and then no more."""

    gone = interrupted = False

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.written = b""
        self._callback = None

    @property
    def congested(self):
        return self.pieces < 0

    def on_writable(self, callback):
        self._callback = callback

    def start(self, status, headers):
        pass

    def write(self, data, *, more, chunk=None):
        self.written += data
        self.pieces -= 1

    def read(self, pieces):
        self.pieces += pieces
        callback, self._callback = self._callback, None
        callback()


async def timed_out():
    """The outcome of a stream whose replica sends two pieces and then no more."""
    relay = relaying(Reader(2), 0.01)
    for each in (opening(), said("a")):
        relay.body_received(each)
    relay.received(await relay.ended)
    return relay.outcome()


async def test_the_replica_is_held_back_while_the_client_does_not_read():
    reader = Reader(0)
    relay = relaying(reader)
    relay.body_received(opening())
    assert relay.exchange.paused
    reader.read(2)
    assert not relay.exchange.paused
    relay.body_received(said("a"))
    assert not relay.exchange.paused
    assert reader.written == opening() + said("a")


async def test_many_short_lines_are_passed_on_in_parts_between_which_others_run():
    reader = Reader(1000)
    relay = relaying(reader)
    events = b"data: {}\n\n" * 2000
    relay.body_received(events)
    assert relay.exchange.paused
    assert 0 < len(reader.written) < len(events) / 2
    while relay.exchange.paused:
        await asyncio.sleep(0)
    assert reader.written == events


async def test_what_was_held_is_checked_when_the_client_reads_again():
    reader = Reader(0)
    relay = relaying(reader)
    relay.body_received(b"data: {}\n\n" * 600 + b"<nonsense>\n\n")
    reader.read(1000)
    assert await relay.ended is Ending.BROKEN
    assert b"nonsense" not in reader.written


async def test_a_client_that_leaves_before_it_has_read_the_end_counts_as_gone():
    reader = Reader(0)
    relay = relaying(reader, 0.01)
    relay.body_received(opening() + b"data: [DONE]\n\n")
    relay.received(Ending.COMPLETE)
    assert relay.ending is Ending.COMPLETE
    finishing = asyncio.create_task(relay.finish())
    await asyncio.sleep(0.05)
    assert not finishing.done()  # how long a client may take to read is a limit of its connection
    reader.gone = True
    finishing.cancel()
    outcome = await finishing
    assert outcome.ending is Ending.CLIENT_GONE
    assert failure_stage(outcome.ending, outcome.status, started=outcome.started) is None
    at = replica("a")
    record_outcome(at, outcome, NOW, NOW)
    assert (at.breaker.failures, at.breaker.is_open(NOW)) == (0, False)


async def test_the_replica_is_not_timed_while_the_client_does_not_read():
    relay = relaying(Reader(0), 0.01)
    relay.body_received(opening())
    await asyncio.sleep(0.05)
    assert not relay.ended.done()


async def test_a_replica_that_falls_silent_has_failed():
    outcome = await timed_out()
    assert outcome.ending is Ending.TIMED_OUT
    assert failure_stage(outcome.ending, outcome.status, started=outcome.started) is not None
