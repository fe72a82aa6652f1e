"""The least a Python proxy can do: ``floor PORT ENGINE``. Parses the body, forwards it, passes the answer on."""

import sys

import orjson
import uvicorn

from gateway.http_client import HttpClient, Origin


class Floor:
    def __init__(self, engine):
        self.origin = Origin.parse(engine)
        self.client = HttpClient(5.0)

    async def __call__(self, scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        orjson.loads(body)
        headers = [(b"content-type", b"application/json")]
        async with self.client.request("POST", self.origin, scope["path"], headers, body) as response:
            kept = [header for header in response.headers if header[0] != b"transfer-encoding"]
            await send({"type": "http.response.start", "status": response.status, "headers": kept})
            while (chunk := await response.read()) is not None:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
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
