"""A closed loop of connections: ``load PORT BODIES CONNECTIONS SECONDS``; prints what it counted as JSON."""

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop

from benchmarks.overhead.wire import split_message

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


class Connection(asyncio.Protocol):
    def __init__(self, requests, start, deadline):
        self.requests = requests
        self.next = start
        self.deadline = deadline
        self.closed = asyncio.get_running_loop().create_future()
        self.data = b""
        self.count = self.errors = 0
        self.seconds: list[float] = []

    def connection_made(self, transport):
        self.transport = transport
        self.send()

    def send(self):
        if time.perf_counter() >= self.deadline:
            self.transport.close()
            return
        self.sent_at = time.perf_counter()
        self.transport.write(self.requests[self.next % len(self.requests)])
        self.next += 1

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


async def main(port, path, connections, seconds):
    bodies = Path(path).read_bytes().split(b"\n")
    requests = [HEAD + b"content-length: %d\r\n\r\n%b" % (len(body), body) for body in bodies]
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    opened = [
        await loop.create_connection(
            lambda n=n: Connection(requests, n * len(requests) // connections, began + seconds), "127.0.0.1", port
        )
        for n in range(connections)
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


uvloop.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
