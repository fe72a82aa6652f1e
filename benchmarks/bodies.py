"""How long one request body blocks the event loop, by what the body contains.

    python -m benchmarks.bodies [--only NAME …] [--rounds 3] [--stacks]

The gateway runs in this process, on the event loop of production; a small engine and the client are processes of their
own. While a body is received, read, encoded, placed, forwarded and settled, a task that sleeps 5 ms records by how much
it wakes up late. The table shows, for each body, the status that the client gets, the seconds until it has the answer,
and the longest lateness in milliseconds: as the clock shows it, and at most the CPU time that this process used
meanwhile, which is what it is on an idle machine. Of several rounds the smallest counts, because a busy machine only
ever adds to it. `--stacks` prints what the event loop did when it was late.
"""

import argparse
import asyncio
import faulthandler
import gc
import http.client
import itertools
import json
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread, get_ident
from typing import Any

import uvloop

from benchmarks.free_ports import free_port
from gateway.app import Gateway
from gateway.config.settings import Settings
from gateway.http_client.open_files import FileLimits
from gateway.server.http_server import HttpServer, bound
from gateway.server.port import PortOptions
from gateway.server.public_handler import PublicHandler

MIB = 2**20
SIZE = 16 * MIB
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_SLEEP = 0.005
_PROSE = b"some words of a long text that has no end, "


def _chat(more: bytes = b"", content: bytes = b"Hi", messages: bytes = b"") -> bytes:
    message = b'{"role":"user","content":"' + content + b'"}' + messages
    return b'{"model":"demo",' + more + b'"messages":[' + message + b"]}"


def _filled(piece: bytes, filled_size: int = SIZE - 1000) -> bytes:
    return piece * (filled_size // len(piece))


def _call(arguments: str) -> bytes:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return b"," + json.dumps({"role": "assistant", "content": None, "tool_calls": [call]}).encode()


def _tool(parameters: dict[str, Any]) -> bytes:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    return b'"tools":[' + json.dumps(tool).encode() + b"],"


def _members(count: int) -> str:
    return "{" + ",".join(f'"k{number}":0' for number in range(count)) + "}"


def _ids(count: int) -> bytes:
    chance = random.Random(count)
    return b",".join(b"%d" % chance.randrange(4000) for _ in range(count))


def _completion(prompt: bytes) -> bytes:
    return b'{"model":"demo","prompt":' + prompt + b"}"


def _many_parts(count: int) -> bytes:
    return b'{"model":"demo","messages":[{"role":"user","content":[%b]}]}' % b",".join(
        [b'{"type":"text","text":"x"}'] * count
    )


_BASE64 = b"QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0" * (SIZE // 40)
_IMAGE = b'{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%b"}}]}'

BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "small": (CHAT, _chat),
    "members": (CHAT, lambda: _chat(b'"x":0,' * 2_000_000)),
    "members at the limit": (CHAT, lambda: _chat(b"".join(b'"k%d":0,' % n for n in range(99_000)))),
    "members inside": (CHAT, lambda: _chat(b'"m":' + _members(99_000).encode() + b",")),
    "salted members": (CHAT, lambda: _chat(b'"cache_salt":"s",' + b'"x":0,' * 99_000)),
    "backslashes": (CHAT, lambda: _chat(b'"x":"' + _filled(b"\\\\") + b'",')),
    "salted backslashes": (CHAT, lambda: _chat(b'"cache_salt":"s","x":"' + _filled(b"\\\\") + b'",')),
    "escapes": (CHAT, lambda: _chat(content=_filled(b"\\u6f22"))),
    "quotes": (CHAT, lambda: _chat(b'"cache_salt":"s",', content=_filled(b'\\"'))),
    "NaN behind numbers": (CHAT, lambda: _chat(b'"x":[' + b"0," * 7_900_000 + b"NaN],")),
    "NaN at the limit": (CHAT, lambda: _chat(b'"x":[' + b"0," * 1_200_000 + b"NaN],")),
    "numbers and objects": (CHAT, lambda: _chat(b'"x":[' + b"0," * 7_900_000 + b"{}," * 70 + b"0],")),
    "lists in arguments": (CHAT, lambda: _chat(messages=_call("[" + "[]," * 4_000_000 + "0]"))),
    "keys in arguments": (CHAT, lambda: _chat(messages=_call(_members(1_100_000)))),
    "arguments at the limit": (CHAT, lambda: _chat(messages=_call(_members(99_000)))),
    "text in arguments": (CHAT, lambda: _chat(messages=_call(json.dumps({"x": "a, b\n" * (3 * MIB // 5)})))),
    "tool of 900k keys": (CHAT, lambda: _chat(_tool(json.loads(_members(900_000))))),
    "tool at the limit": (CHAT, lambda: _chat(_tool(json.loads(_members(99_000))))),
    "4096 prompts of ids": (COMPLETIONS, lambda: _completion(b"[" + b",".join([b"[%b]" % _ids(240)] * 4096) + b"]")),
    "1M ids": (COMPLETIONS, lambda: _completion(b"[" + _ids(1_000_000) + b"]")),
    "1M ids, streamed": (COMPLETIONS, lambda: b'{"stream":true,' + _completion(b"[" + _ids(1_000_000) + b"]")[1:]),
    "text": (CHAT, lambda: _chat(content=_filled(_PROSE))),
    "text of 4 MiB": (CHAT, lambda: _chat(content=_filled(_PROSE, 4 * MIB - 1000))),
    "text of 3 MiB, salted": (CHAT, lambda: _chat(b'"cache_salt":"s",', content=_filled(_PROSE, 3 * MIB))),
    "prompt": (COMPLETIONS, lambda: _completion(b'"' + _filled(_PROSE) + b'"')),
    "text and one emoji": (CHAT, lambda: _chat(content=_filled(_PROSE) + "😀".encode())),
    "text of 8 MiB, emoji": (CHAT, lambda: _chat(content=_filled(_PROSE, 8 * MIB - 1000) + "😀".encode())),
    "Chinese": (CHAT, lambda: _chat(content=_filled("漢字かな交じり文。".encode()))),
    "emoji": (CHAT, lambda: _chat(content=_filled("😀".encode()))),
    "images": (CHAT, lambda: _chat(messages=b"," + _IMAGE % _BASE64)),
    "20,000 messages": (CHAT, lambda: _chat(messages=b',{"role":"user","content":"x"}' * 20_000)),
    "99,000 messages": (CHAT, lambda: _chat(messages=b',{"role":"user","content":"x"}' * 99_000)),
    "99,000 system messages": (CHAT, lambda: _chat(messages=b',{"role":"system","content":"x"}' * 99_000)),
    "99,000 parts": (CHAT, lambda: _many_parts(99_000)),
    "1M messages": (CHAT, lambda: _chat(messages=b',{"role":"a"}' * 1_000_000)),
    "blanks": (CHAT, lambda: b"{" + b" " * (SIZE - 1000) + _chat()[1:]),
    "brackets": (CHAT, lambda: b"[" * SIZE),
    "a number of 16 MiB": (CHAT, lambda: _chat(b'"x":1.' + b"1" * (SIZE - 1000) + b",")),
    "cache_control marks": (
        CHAT,
        lambda: _chat(messages=b',{"role":"user","content":"x","cache_control":{"type":"ephemeral"}}' * 40_000),
    ),
    "Python's spacing": (CHAT, lambda: json.dumps(json.loads(_chat(content=_filled(_PROSE)))).encode()),
}


async def _engine(port: int) -> None:
    """Answers everything at once; runs as a process of its own."""
    reply = json.dumps(
        {
            "id": "x",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    ).encode()
    models = b'{"object":"list","data":[{"id":"demo","object":"model","owned_by":"vllm"}]}'

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
                body = reply if head.startswith(b"POST") else models if b" /v1/models" in head else b""
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                writer.write(head + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=2**16)
    await server.serve_forever()


def _send(name: str, port: int) -> None:
    """Sends one body on command, and prints what came; runs as a process of its own."""
    path, make = BODIES[name]
    body = make()
    print(len(body), flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        status, text = answer.status, answer.read()
        code = json.loads(text)["error"]["code"] if status >= 400 else ""
    except OSError as error:
        status, code = 0, type(error).__name__
    print(json.dumps([status, code, time.perf_counter() - began]), flush=True)


class Probe:
    """Records by how much a task that sleeps is late.

    Args:
        stacks: Whether to look at what the event loop's thread does meanwhile.
    """

    def __init__(self, *, stacks: bool) -> None:
        self.worst = self.own = 0.0
        self.found: Counter[str] = Counter()
        self._due = 0.0
        self._stacks = stacks
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._loop_thread = get_ident()
        if stacks:
            Thread(target=self._watch, daemon=True).start()

    async def _run(self) -> None:
        while True:
            began, used = time.perf_counter(), time.process_time()
            self._due = began + _SLEEP
            await asyncio.sleep(_SLEEP)
            late = time.perf_counter() - began - _SLEEP
            self.worst = max(self.worst, late)
            self.own = max(self.own, min(late, time.process_time() - used))

    def _watch(self) -> None:
        while True:
            time.sleep(0.003)
            if time.perf_counter() - self._due > 0.012:
                frames = sys._current_frames()
                for thread, frame in frames.items():
                    lines = [
                        f"{line.filename.rpartition('/')[2]}:{line.lineno} {line.name}"
                        for line in traceback.extract_stack(frame)
                    ]
                    if thread == get_ident() or "thread.py" in lines[-1] or "threading.py" in lines[-1]:
                        continue
                    where = "loop" if thread == self._loop_thread else "thread"
                    self.found[where + ": " + " < ".join(reversed(lines[-4:]))] += 1


@contextmanager
def _child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.bodies", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _started(engine_port: int) -> tuple[Gateway, int]:
    settings = Settings.model_validate(
        {
            "models": [
                {"id": "demo", "tokenizer": "builtin:demo", "replicas": [f"http://127.0.0.1:{engine_port}"]},
            ],
            "log": {"requests": False},
        }
    )
    gateway = Gateway(settings)
    await gateway.start()
    port = free_port()
    server = HttpServer(PublicHandler(gateway.public), PortOptions.of(settings, FileLimits.of_public_port))
    await server.listen([bound("server.port", "127.0.0.1", port)])
    return gateway, port


async def _measure(args: argparse.Namespace) -> None:
    engine_port = free_port()
    with _child("--engine", str(engine_port)):
        await asyncio.sleep(1.5)
        gateway, port = await _started(engine_port)
        await asyncio.sleep(2)  # the process that explains starts
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        print(f"{'body':24} {'MiB':>6} {'status':>24} {'s':>6} {'ms late':>8} {'own ms':>8}", flush=True)
        for name in args.only or BODIES:
            results = [await _round(name, port, args) for _ in range(args.rounds)]
            size, status, code, seconds, *_ = results[0]
            late, own = (1000 * min(each[column] for each in results) for column in (4, 5))
            print(f"{name:24} {size / MIB:6.1f} {status} {code:>20} {seconds:6.2f} {late:8.1f} {own:8.1f}", flush=True)
        await gateway.stop()


async def _round(name: str, port: int, args: argparse.Namespace) -> tuple[int, int, str, float, float, float]:
    to_thread = asyncio.to_thread
    with _child("--send", name, "--port", str(port)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        size = int(await to_thread(process.stdout.readline))
        await asyncio.sleep(0.2)
        probe = Probe(stacks=args.stacks)
        process.stdin.write("go\n")
        process.stdin.flush()
        status, code, seconds = json.loads(await to_thread(process.stdout.readline))
        await asyncio.sleep(0.3)  # what is settled and handed over afterwards
        probe._task.cancel()
        for where, count in itertools.islice(probe.found.most_common(), 12):
            print(f"    {count:4} {where}")
        return size, status, code or "", seconds, probe.worst, probe.own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=BODIES, help="some of them")
    parser.add_argument("--rounds", type=int, default=3, help="how many times each is sent")
    parser.add_argument("--stacks", action="store_true", help="print what the gateway did when it was late")
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--send", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    faulthandler.enable()
    if args.engine:
        asyncio.run(_engine(args.engine))
    elif args.send:
        _send(args.send, args.port)
    else:
        uvloop.run(_measure(args))


if __name__ == "__main__":
    main()
