"""An engine that publishes over real sockets: a block pool, a publishing socket, a buffer, and a socket for replays."""

import asyncio
import time
from array import array
from collections import deque

import msgspec
import zmq
from index.engine_model import Engine, Prompt

from gateway.core.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

END = (-1).to_bytes(8, "big", signed=True)
TOPIC = b"kv"


def on_the_wire(event):
    """A map as vLLM sends it."""
    match event:
        case BlockStored():
            return {
                "type": "BlockStored",
                "block_hashes": list(event.names),
                "parent_block_hash": event.parent,
                "token_ids": list(array("I", event.tokens)),
                "block_size": event.block_size,
                "medium": "GPU",
                "extra_keys": [[event.salt]] + [None] * (len(event.names) - 1) if event.salt else None,
                "group_idx": event.group,
                "kv_cache_spec_kind": "full_attention",
            }
        case BlockRemoved():
            return {"type": "BlockRemoved", "block_hashes": list(event.names), "medium": "GPU"}
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}


class PublishingEngine:
    """Opens its sockets at once; use it inside of a running event loop.

    Args:
        buffer: Batches kept for replays.
        ports: Where to listen; 0 for any free one.
        answers: Whether replays are answered.
    """

    def __init__(self, *, buffer=10_000, ports=(0, 0), answers=True):
        self.pool = Engine(200, 16)
        self.asked = []
        self.clients = []
        self.clock_seconds = 0.0
        self._kept = deque(maxlen=buffer)
        self._sequence = 0
        self._answers = answers
        self._context = zmq.Context()
        self.ports = list(ports)
        self._pub = self._router = None
        self.open()

    @property
    def is_open(self):
        return self._pub is not None

    @property
    def events(self):
        return f"tcp://127.0.0.1:{self.ports[0]}"

    @property
    def replay(self):
        return f"tcp://127.0.0.1:{self.ports[1]}"

    def open(self):
        self._pub = self._context.socket(zmq.XPUB)
        self._pub.sndhwm = 0
        self._pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.sndhwm = 0
        for number, socket in enumerate((self._pub, self._router)):
            socket.linger = 0
            address = f"tcp://127.0.0.1:{self.ports[number] or '*'}"
            deadline = time.monotonic() + 5
            while True:
                try:
                    socket.bind(address)
                    break
                except zmq.ZMQError:  # closed a moment ago, in zmq's own thread
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            self.ports[number] = int(socket.last_endpoint.rstrip(b"\0").rpartition(b":")[2])
        asyncio.get_running_loop().add_reader(self._router.fileno(), self._replays)

    async def subscribed(self):
        """Until a subscription has arrived: what is published before is not sent to it."""
        while True:
            try:
                if self._pub.recv(zmq.NOBLOCK)[:1] == b"\1":
                    return
            except zmq.Again:
                await asyncio.sleep(0.005)

    def close(self):
        """The sockets go; the pool and the buffer stay."""
        if self._pub is not None:
            asyncio.get_running_loop().remove_reader(self._router.fileno())
            self._pub.close(0)
            self._router.close(0)
            self._pub = self._router = None

    def restart(self):
        """A new process at the same place, not listening yet."""
        self.close()
        self.pool = Engine(200, 16)
        self._kept.clear()
        self._sequence = 0

    def end(self):
        self.close()
        self._context.destroy(0)

    def ask(self, *tokens, salt="", send=True):
        """A request for a prompt, answered at once, and the batch of events about it."""
        assert self.pool.begin(Prompt(tokens, salt))
        self.pool.end(self.pool.running[0])
        return self.publish(send=send)

    def reset(self):
        assert self.pool.reset()
        return self.publish()

    def publish(self, *, send=True):
        events = [on_the_wire(event) for event in self.pool.take_events()]
        if events:
            self.send(msgspec.msgpack.encode([time.time() + self.clock_seconds, events, 0]), send=send)

    def send(self, payload, *, send=True):
        """One batch as bytes."""
        frames = [TOPIC, self._sequence.to_bytes(8, "big"), payload]
        self._sequence += 1
        self._kept.append(frames)
        if send:
            self.send_frames(frames)

    def send_frames(self, frames):
        if self._pub is not None:
            self._pub.send_multipart(frames)

    def send_replay(self, client, frames):
        """One message of a replay, to one of those that have asked."""
        self._router.send_multipart([client, b"", *frames])

    def _replays(self):
        while True:
            try:
                client, _, start = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            first = int.from_bytes(start, "big")
            self.asked.append(first)
            self.clients.append(client)
            if not self._answers:
                continue
            for frames in self._kept:
                if int.from_bytes(frames[1], "big") >= first:
                    self._router.send_multipart([client, b"", *frames])
            self._router.send_multipart([client, b"", b"", END, b""])
