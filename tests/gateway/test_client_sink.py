"""What is left of an exchange when it is over."""

import asyncio
import gc
import weakref

from gateway.api.client_exchange import ClientSink


async def test_nothing_of_an_exchange_is_left_for_the_garbage_collector():
    async def receive():
        await asyncio.Event().wait()

    async def send(_message):
        pass

    gc.collect()
    gc.disable()
    try:
        sink = ClientSink(receive, send)
        await sink.start(200, [])
        await asyncio.sleep(0)  # it waits for the client to leave now
        sink.close()
        left = weakref.ref(sink)
        del sink
        for _ in range(5):
            await asyncio.sleep(0)
        assert left() is None
    finally:
        gc.enable()
