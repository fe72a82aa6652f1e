"""Mock engines that take no time of their own: ``engine PORT... CHUNKS [--pause SECONDS] [--blocks N]``.

A body with ``"stop_token_ids":[PROMPT,CACHED]`` has these tokens reported as its usage.
"""

import argparse
import asyncio
import re

import uvloop

from benchmarks.overhead.wire import split_message

USAGE = (
    b'"usage":{"prompt_tokens":%d,"completion_tokens":8,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
)
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hello there"},"finish_reason":"stop"}],%b}'
)
CARD = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","max_model_len":1048576}]}'
METRICS = (
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="%d",enable_prefix_caching="True"} 1.0\n'
    b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
)
TOKENS = re.compile(rb'"stop_token_ids": ?\[(\d+), ?(\d+)\]')
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def plain(body: bytes, content_type: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (content_type, len(body), body)


def event(body: bytes) -> bytes:
    data = b"data: " + body + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def usage_of(body: bytes) -> bytes:
    found = TOKENS.match(body, max(body.rfind(b'"stop_token_ids"'), 0))
    prompt, cached = map(int, found.groups()) if found else (2000, 1984)
    return USAGE % (prompt, prompt + 8, cached)


class Engine(asyncio.Protocol):
    chunks, pause, blocks = 0, 0.01, 8193

    def connection_made(self, transport):
        self.transport = transport
        self.data = b""

    def data_received(self, data):
        self.data += data
        while (message := split_message(self.data)) is not None:
            head, body, self.data = message
            if head.startswith(b"POST"):
                if b'"stream":true' in body or b'"stream": true' in body:
                    self.transport.write(STREAM_HEAD)
                    self.send_chunk(0, usage_of(body))
                else:
                    self.transport.write(plain(ANSWER % usage_of(body)))
            elif b"/v1/models" in head[:40]:
                self.transport.write(plain(CARD))
            elif b"/metrics" in head[:40]:
                self.transport.write(plain(METRICS % self.blocks, b"text/plain"))
            else:
                self.transport.write(plain(b"{}"))

    def send_chunk(self, number, usage):
        if self.transport.is_closing():
            return
        if number < self.chunks:
            delta = b'"choices":[{"index":0,"delta":{"content":"tok%d"},"finish_reason":null}]}' % number
            self.transport.write(
                event(b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",' + delta)
            )
            asyncio.get_running_loop().call_later(self.pause, self.send_chunk, number + 1, usage)
            return
        last = (
            b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],' + usage + b"}"
        )
        self.transport.write(event(last) + event(b"[DONE]") + b"0\r\n\r\n")


async def main(ports):
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(Engine, "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("ports", type=int, nargs="+", metavar="PORT")
parser.add_argument("chunks", type=int)
parser.add_argument("--pause", type=float, default=Engine.pause, help="seconds between two chunks of a stream")
parser.add_argument("--blocks", type=int, default=Engine.blocks, help="blocks of each engine's cache")
given = parser.parse_args()
Engine.chunks, Engine.pause, Engine.blocks = given.chunks, given.pause, given.blocks
uvloop.run(main(given.ports))
