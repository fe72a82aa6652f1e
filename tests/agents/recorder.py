"""A proxy in front of the gateway that keeps what passes through it."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_OF_A_HOP = {"connection", "content-length", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True)
class Exchange:
    """A request and its answer.

    Attributes:
        method: The request's method.
        path: Its path, with the query.
        headers: Its headers.
        body: Its body.
        status: The answer's status.
        request_id: The answer's ``x-request-id``.
        answer: The answer's body.
    """

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    status: int
    request_id: str
    answer: bytes

    @property
    def text(self) -> str:
        """The text that a streamed answer of any API consists of."""
        return "".join(_texts(self.answer))


def _texts(stream: bytes) -> Iterator[str]:
    for line in stream.splitlines():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[len(b"data: ") :])
        if event.get("type") == "response.output_text.delta":
            yield event["delta"]
        elif event.get("type") == "content_block_delta":
            yield event["delta"].get("text", "")
        elif event.get("choices"):
            yield event["choices"][0]["delta"].get("content") or ""


class Recorder(ThreadingHTTPServer):
    """Listens on a port of the loopback and passes everything on.

    Attributes:
        url: Where it listens.
        exchanges: What has passed since they were taken, in the order in which the answers ended.
    """

    daemon_threads = True

    def __init__(self, gateway_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.gateway_port = gateway_port
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.exchanges: list[Exchange] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def taken(self) -> list[Exchange]:
        """Take what has passed."""
        taken, self.exchanges = self.exchanges, []
        return taken

    def handle_error(self, request: object, client_address: object) -> None:
        """A client may close its connection at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Recorder

    def log_message(self, *arguments: object) -> None:
        pass

    def _pass_on(self) -> None:
        body = b"".join(self._body())
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        gateway = HTTPConnection("127.0.0.1", self.server.gateway_port)
        upgrade = {"connection": "Upgrade"} if "upgrade" in self.headers else {}
        kept = {name: value for name, value in headers if name not in _OF_A_HOP}
        gateway.request(self.command, self.path, body or None, kept | upgrade)
        answer = gateway.getresponse()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_A_HOP:
                self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        found, request_id = b"", answer.getheader("x-request-id", "")
        try:
            while self.command != "HEAD" and (data := answer.read1(65536)):
                found += data
                self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        finally:
            exchange = Exchange(self.command, self.path, headers, body, answer.status, request_id, found)
            self.server.exchanges.append(exchange)
            gateway.close()
        if self.command != "HEAD":
            self.wfile.write(b"0\r\n\r\n")

    do_DELETE = do_GET = do_HEAD = do_POST = _pass_on

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            yield self.rfile.read(int(self.headers.get("content-length", 0)))
            return
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
