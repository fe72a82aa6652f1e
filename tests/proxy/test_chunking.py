"""However a stream arrives and however slowly the client reads, the client gets the same bytes."""

import asyncio
from collections import deque

from hypothesis import given
from hypothesis import strategies as st
from pieces import event, opening, said, usage
from relaying import relaying

from gateway.core.outcome import Ending

EVENTS = st.sampled_from(
    [
        opening(),
        said("a"),
        said("é €"),
        said("x" * 3000),
        b": keep-alive\n\n",
        b"event: message\r\ndata: {}\r\n\r\n",
        b"data: {}\n\n" * 700,
        event(choices=[], usage=usage(5, 2, 1)),
    ]
)


class Client:
    """A ``Sink`` that is congested after some writes, until it reads."""

    gone = interrupted = False

    def __init__(self, congested_after):
        self.congested = False
        self.got = b""
        self._congested_after = congested_after
        self._writes = 0
        self._callbacks = []

    def on_writable(self, callback):
        self._callbacks.append(callback)

    def start(self, status, headers):
        assert status == 200

    def write(self, data, *, more):
        self.got += data
        self._writes += 1
        self.congested = self.congested or self._writes in self._congested_after

    def read(self):
        self.congested = False
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


async def passed_on(parts, congested_after, *, wanted):
    """What the client gets of a stream that arrives in these parts, and the outcome."""
    client = Client(congested_after)
    relay = relaying(client, stream_options={"include_usage": wanted})
    waiting = deque(parts)
    for _ in range(10_000):
        if client.congested:
            client.read()
        elif relay.exchange.paused:
            await asyncio.sleep(0)
        elif waiting:
            relay.body_received(waiting.popleft())
        else:
            break
    relay.received(Ending.COMPLETE)
    if client.congested:
        asyncio.get_running_loop().call_soon(client.read)
    outcome = await relay.finish()
    return client.got, outcome.ending, outcome.usage


@given(
    events=st.lists(EVENTS, max_size=6),
    data=st.data(),
    congested_after=st.sets(st.integers(1, 12)),
    wanted=st.booleans(),
)
def test_the_client_gets_the_same_bytes_however_they_arrive(events, data, congested_after, wanted):
    stream = b"".join(events) + b"data: [DONE]\n\n"
    places = sorted(data.draw(st.lists(st.integers(1, len(stream) - 1), max_size=8)))
    parts = [part for a, b in zip([0, *places], [*places, len(stream)], strict=True) if (part := stream[a:b])]
    whole = asyncio.run(passed_on([stream], (), wanted=wanted))
    assert asyncio.run(passed_on(parts, congested_after, wanted=wanted)) == whole
    assert whole[1] is Ending.COMPLETE
    expected = stream if wanted else stream.replace(event(choices=[], usage=usage(5, 2, 1)), b"")
    assert whole[0] == expected
