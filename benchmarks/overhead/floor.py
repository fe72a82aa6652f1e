"""The least a Python proxy can do: ``floor PORT ENGINE``. Reads the body, parses it, forwards it, passes the answer on."""

import sys

import orjson
import uvicorn
from pyreqwest.client import ClientBuilder


class Floor:
    def __init__(self, engine):
        self.url = engine + "/v1/chat/completions"
        self.client = ClientBuilder().gzip(False).brotli(False).zstd(False).deflate(False).no_proxy().build()

    async def __call__(self, scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        orjson.loads(body)
        request = (
            self.client.post(self.url)
            .headers([("content-type", "application/json")])
            .body_bytes(body)
            .streamed_read_buffer_limit(0)
        )
        async with request.build_streamed() as response:
            headers = [(b"content-type", response.get_header("content-type").encode())]
            await send({"type": "http.response.start", "status": response.status, "headers": headers})
            while (chunk := await response.body_reader.read_chunk()) is not None:
                await send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


uvicorn.run(
    Floor(sys.argv[2]),
    host="127.0.0.1",
    port=int(sys.argv[1]),
    log_level="error",
    access_log=False,
    http="httptools",
    loop="uvloop",
    lifespan="off",
    ws="none",
)
