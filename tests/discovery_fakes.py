"""A name server and a Kubernetes API, small, over real sockets, for tests of discovery."""

import asyncio
import contextlib
import json
from urllib.parse import parse_qs, urlsplit

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class FakeNames(asyncio.DatagramProtocol):
    """A name server.

    Attributes:
        records: Texts of records by name and type, such as ``{("vllm.test.", "A"): ["127.0.0.1"]}``.
        ttl: Of all records.
        failing: Types that are answered with SERVFAIL.
        silent: Whether nothing is answered at all.
        questions: Names and types that were asked for.
    """

    def __init__(self):
        self.records = {}
        self.ttl = 0
        self.failing = set()
        self.silent = False
        self.questions = []

    async def start(self):
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        self.server = "127.0.0.1:{}".format(self._transport.get_extra_info("sockname")[1])
        return self

    def stop(self):
        self._transport.close()

    def datagram_received(self, data, address):
        query = dns.message.from_wire(data)
        (question,) = query.question
        name, kind = question.name.to_text().lower(), dns.rdatatype.to_text(question.rdtype)
        self.questions.append((name, kind))
        if self.silent:
            return
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        if kind in self.failing:
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif records := self.records.get((name, kind)):
            answer.answer.append(dns.rrset.from_text(question.name, self.ttl, "IN", kind, *records))
        elif not any(known == name for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(answer.to_wire(), address)


class FakeKubernetes:
    """The part of the API that serves endpoint slices: lists with a version, and watches since one.

    Attributes:
        slices: The objects by name.
        token: What has to come as a bearer; None for anything.
        status: Status of all answers, if it is not 200.
        ends_watches: Whether every watch is ended at once.
        asked: Path and query of every request.
    """

    def __init__(self):
        self.slices = {}
        self.token = None
        self.status = 200
        self.ends_watches = False
        self.asked = []
        self._version = 100
        self._oldest = 0
        self._history = []
        self._changed = asyncio.Event()
        self._open = {}

    async def start(self, tls=None):
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=tls)
        scheme, port = "http" if tls is None else "https", self._server.sockets[0].getsockname()[1]
        self.url = f"{scheme}://127.0.0.1:{port}"
        return self

    async def stop(self):
        self._server.close()
        self.drop_watches()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*list(self._open), return_exceptions=True)

    @property
    def watches(self):
        """How many are open."""
        return sum("watch" in query for query in self._open.values())

    def listed(self):
        return sum("watch" not in query for _, query in self.asked)

    def put(self, name, *endpoints, ports=(("http", 8000),), family="IPv4"):
        """Add or change a slice."""
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = {
            "metadata": {"name": name},
            "addressType": family,
            "endpoints": list(endpoints),
            "ports": [{"name": port_name, "port": port, "protocol": "TCP"} for port_name, port in ports],
        }
        self._send(kind, self.slices[name])

    def delete(self, name):
        self._send("DELETED", self.slices.pop(name))

    def say(self, kind, content):
        """Send any event to all watches."""
        self._history.append((self._version, kind, content))
        self._wake()

    def compact(self):
        """Forget all changes so far: a watch since an older version gets status 410."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()

    def drop_watches(self):
        """Break all connections."""
        for task, query in list(self._open.items()):
            if "writer" in query:
                query["writer"].transport.abort()
            task.cancel()

    def _send(self, kind, item):
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, kind, json.loads(json.dumps(item))))
        self._wake()

    def _wake(self):
        self._changed.set()
        self._changed = asyncio.Event()

    async def _connected(self, reader, writer):
        task = asyncio.current_task()
        query = self._open[task] = {}
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *headers = head.split("\r\n")
                target = urlsplit(line.split()[1])
                query.clear()
                query.update({"writer": writer}, **parse_qs(target.query))
                self.asked.append((target.path, parse_qs(target.query)))
                bearer = next((each[15:] for each in headers if each.lower().startswith("authorization: ")), "")
                if self.token is not None and bearer != f"Bearer {self.token}":
                    self._answer(writer, 401, {"message": "Unauthorized"})
                elif self.status != 200:
                    self._answer(writer, self.status, {"message": "not now"})
                elif "watch" not in query:
                    items = list(self.slices.values())
                    self._answer(writer, 200, {"metadata": {"resourceVersion": str(self._version)}, "items": items})
                elif int(query["resourceVersion"][0]) < self._oldest:
                    self._answer(writer, 410, {"message": "too old resource version"})
                else:
                    if self.ends_watches:
                        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                        continue
                    reported = sum(version <= int(query["resourceVersion"][0]) for version, _, _ in self._history)
                    watch = asyncio.create_task(self._watch(writer, reported))
                    try:
                        await reader.read()  # until the client is gone
                    finally:
                        watch.cancel()
                    break
        writer.close()
        del self._open[task]

    async def _watch(self, writer, reported):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            changed = self._changed
            for _, kind, item in self._history[reported:]:
                reported += 1
                line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
                writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            await writer.drain()
            await changed.wait()

    @staticmethod
    def _answer(writer, status, content):
        body = json.dumps(content).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)


def endpoint(address, pod="", *, ready=True, serving=None, terminating=False, zone=None):
    """One endpoint of a slice, as Kubernetes writes it."""
    conditions = {"ready": ready, "serving": ready if serving is None else serving, "terminating": terminating}
    reported = {"addresses": [address], "conditions": conditions}
    if pod:
        reported["targetRef"] = {"kind": "Pod", "name": pod, "namespace": "default"}
    return reported | ({} if zone is None else {"zone": zone})
