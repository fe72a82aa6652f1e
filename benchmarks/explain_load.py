"""A closed loop of connections: ``explain_load PORT BODIES CONNECTIONS SECONDS``; prints rates and times as JSON."""

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop

from benchmarks.overhead.wire import split_message

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nuser-agent: web/1\r\ncontent-type: application/json\r\n"


class Connection(asyncio.Protocol):
    def __init__(self, requests, start, deadline):
        self.requests = requests
        self.next = start
        self.deadline = deadline
        self.closed = asyncio.get_running_loop().create_future()
        self.data = b""
        self.errors = 0
        self.seconds = []

    def connection_made(self, transport):
        self.transport = transport
        self.send()

    def send(self):
        self.sent_at = time.perf_counter()
        if self.sent_at >= self.deadline:
            self.transport.close()
            return
        self.transport.write(self.requests[self.next % len(self.requests)])
        self.next += 1

    def data_received(self, data):
        self.data += data
        message = split_message(self.data)
        if message is None:
            return
        self.seconds.append(time.perf_counter() - self.sent_at)
        self.errors += not message[0].startswith(b"HTTP/1.1 200")
        self.data = b""
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
    taken = sorted(second for _, protocol in opened for second in protocol.seconds)
    print(
        json.dumps(
            {
                "requests": len(taken),
                "errors": sum(protocol.errors for _, protocol in opened),
                "seconds": time.perf_counter() - began,
                "p50": taken[len(taken) // 2],
                "p99": taken[len(taken) * 99 // 100],
            }
        )
    )


uvloop.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
