"""Mock engines that take no time of their own: ``engine PORT PORT CHUNKS``."""

import asyncio
import sys

import uvloop

from benchmarks.overhead.wire import split_message

USAGE = (
    b'"usage":{"prompt_tokens":2000,"completion_tokens":8,"total_tokens":2008,'
    b'"prompt_tokens_details":{"cached_tokens":1984}}'
)
ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hello there"},"finish_reason":"stop"}],' + USAGE + b"}"
)
CARD = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","max_model_len":32768}]}'
METRICS = (
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="8193",enable_prefix_caching="True"} 1.0\n'
    b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"


def plain(body: bytes, content_type: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (content_type, len(body), body)


def event(body: bytes) -> bytes:
    data = b"data: " + body + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


class Engine(asyncio.Protocol):
    chunks = 0

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
                    self.send_chunk(0)
                else:
                    self.transport.write(plain(ANSWER))
            elif b"/v1/models" in head[:40]:
                self.transport.write(plain(CARD))
            elif b"/metrics" in head[:40]:
                self.transport.write(plain(METRICS, b"text/plain"))
            else:
                self.transport.write(plain(b"{}"))

    def send_chunk(self, number):
        if self.transport.is_closing():
            return
        if number < self.chunks:
            delta = b'"choices":[{"index":0,"delta":{"content":"tok%d"},"finish_reason":null}]}' % number
            self.transport.write(
                event(b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",' + delta)
            )
            asyncio.get_running_loop().call_later(0.01, self.send_chunk, number + 1)
            return
        last = (
            b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],' + USAGE + b"}"
        )
        self.transport.write(event(last) + event(b"[DONE]") + b"0\r\n\r\n")


async def main(ports, chunks):
    Engine.chunks = chunks
    loop = asyncio.get_running_loop()
    for port in ports:
        await loop.create_server(Engine, "127.0.0.1", port)
    await asyncio.Event().wait()


uvloop.run(main([int(port) for port in sys.argv[1:3]], int(sys.argv[3])))
