"""A closed loop of connections: ``load PORT BODIES CONNECTIONS SECONDS API [once]``; prints what it counted as JSON.

The connections send all bodies, which are chat requests, as those of an API over and over, beginning at different ones;
with ``once`` each body is sent once.
"""

import asyncio
import itertools
import json
import sys
import time
from pathlib import Path

import uvloop

from benchmarks.overhead.bodies import PATHS, body_for
from benchmarks.overhead.wire import split_message

HEADS = {
    api: f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()
    for api, path in PATHS.items()
}
HEAD = HEADS["chat"]


class Connection(asyncio.Protocol):
    def __init__(self, requests, deadline):
        self.requests = requests
        self.deadline = deadline
        self.closed = asyncio.get_running_loop().create_future()
        self.data = b""
        self.count = self.errors = 0
        self.seconds: list[float] = []

    def connection_made(self, transport):
        self.transport = transport
        self.send()

    def send(self):
        self.sent_at = time.perf_counter()
        request = next(self.requests, None) if self.sent_at < self.deadline else None
        if request is None:
            self.transport.close()
            return
        self.transport.write(request)

    def data_received(self, data):
        self.data += data
        if b"transfer-encoding" in self.data[:600].lower():
            if not self.data.endswith(b"0\r\n\r\n"):
                return
            ok = self.data.startswith(b"HTTP/1.1 200")
        else:
            message = split_message(self.data)
            if message is None:
                return
            ok = message[0].startswith(b"HTTP/1.1 200")
        self.data = b""
        self.seconds.append(time.perf_counter() - self.sent_at)
        self.count += ok
        self.errors += not ok
        self.send()

    def connection_lost(self, exc):
        if not self.closed.done():
            self.closed.set_result(None)


def beginning_at(requests, start):
    return itertools.cycle(requests[start:] + requests[:start])


async def main(port, path, connections, seconds, api, once):
    bodies = [body_for(api, body) for body in Path(path).read_bytes().split(b"\n")]
    requests = [HEADS[api] + b"content-length: %d\r\n\r\n%b" % (len(body), body) for body in bodies]
    shared = iter(requests)
    sent = [shared if once else beginning_at(requests, n * len(requests) // connections) for n in range(connections)]
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    opened = [
        await loop.create_connection(lambda each=each: Connection(each, began + seconds), "127.0.0.1", port)
        for each in sent
    ]
    await asyncio.gather(*(protocol.closed for _, protocol in opened))
    seconds_each = sorted(each for _, protocol in opened for each in protocol.seconds)
    print(
        json.dumps(
            {
                "p50": seconds_each[len(seconds_each) // 2],
                "p99": seconds_each[len(seconds_each) * 99 // 100],
                "requests": sum(p.count for _, p in opened),
                "errors": sum(p.errors for _, p in opened),
                "seconds": time.perf_counter() - began,
            }
        )
    )


if __name__ == "__main__":
    port, path, connections, seconds, api, *once = sys.argv[1:]
    uvloop.run(main(int(port), path, int(connections), float(seconds), api, once))
