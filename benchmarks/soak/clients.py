"""The clients: those who talk, those who leave, those who do it wrong, those who only take up a place."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence

import orjson

from benchmarks.overhead.bodies import WORDS
from benchmarks.soak.score import Score, text_of
from benchmarks.soak.stage import LIMITED, MODEL, Stage
from benchmarks.soak.wire import Connection, head

LONGEST_SECONDS = 150.0
"""Nothing takes longer."""

_TALKERS = 8
_SHARED_SYSTEMS = 6
_TURNS = 6
_EMAILS = 60
"""In a newcomer's prompt: what is remembered of personal data is bounded by number, and should be full soon."""
_NEWCOMER_WORDS = 1400
_BURST = 40

_CHAT = "/v1/chat/completions"
_JSON = "application/json"

Act = Callable[[], Awaitable[None]]


class Clients:
    """All clients.

    Args:
        stage: Whom they ask.
        score: Gets what they saw.
        seed: The same say the same.
    """

    def __init__(self, stage: Stage, score: Score, seed: int) -> None:
        self._stage = stage
        self._score = score
        self._random = random.Random(seed)
        self._port = stage.gateway.port
        self._tenants = [name for name in stage.keys if name != LIMITED]
        self._systems = [self._words(300) for _ in range(_SHARED_SYSTEMS)]
        self._numbers = itertools.count()
        self._mistakes = self._all_mistakes()
        self.last_request = ""
        """Id of a request that was answered a moment ago."""

    def acts(self) -> Sequence[tuple[str, float, Act]]:
        """What is begun again and again: its name, seconds between two beginnings, and how it goes."""
        return (
            ("newcomer", 0.25, self._newcomer),
            ("leaver", 1.0, self._leaver),
            ("mistake", 0.5, self._mistake),
            ("limited", 0.3, self._limited),
            ("idle", 1.5, self._idle),
            ("burst", 30.0, self._burst),
        )

    def talkers(self) -> Sequence[tuple[str, Act]]:
        """What goes on all the time, one conversation after the other."""
        return [("talk", self._talk)] * _TALKERS

    async def ask(self, kind: str, port: int, tenant: str) -> None:
        """One short question at some gateway."""
        connection = await Connection.open(port)
        try:
            body = self._body([{"role": "user", "content": self._words(30)}], stream=False)
            answer = await connection.ask("POST", _CHAT, self._headers(tenant), body)
            self._score.take(kind, answer)
        finally:
            connection.close()

    # Those who talk

    async def _talk(self) -> None:
        """A conversation, from beginning to end."""
        chance, tenant = self._random, self._random.choice(self._tenants)
        headers = self._headers(tenant, session=f"session-{next(self._numbers)}")
        now = f"It is 2026-03-{chance.randint(1, 28):02} {chance.randint(0, 23):02}:{chance.randint(0, 59):02}."
        messages = [{"role": "system", "content": f"{now}\n{chance.choice(self._systems)}"}]
        tools = [self._tool(number) for number in range(3)] if chance.random() < 0.2 else []
        connection = await Connection.open(self._port)
        try:
            for _ in range(chance.randint(1, _TURNS)):
                messages.append({"role": "user", "content": self._words(25)})
                stream = not tools and chance.random() < 0.6
                chance.shuffle(tools)
                extra = {"tools": tools, "tool_choice": "none"} if tools else {}
                body = self._body(messages, stream=stream, **extra)
                answer = await connection.ask("POST", _CHAT, headers, body)
                if not self._score.take("stream" if stream else "whole", answer):
                    return
                self.last_request = answer.headers.get("x-request-id", self.last_request)
                messages.append({"role": "assistant", "content": text_of(answer, stream=stream)})
                await asyncio.sleep(chance.uniform(0.1, 0.5))
                if chance.random() < 0.3:
                    connection.close()
                    connection = await Connection.open(self._port)
        finally:
            connection.close()

    async def _newcomer(self) -> None:
        """A long prompt that begins like no other, on a connection of its own."""
        chance = self._random
        connection = await Connection.open(self._port)
        try:
            if chance.random() < 0.2:
                body = {"model": MODEL, "prompt": f"{next(self._numbers)} {self._words(200)}", "max_tokens": 16}
                answer = await connection.ask("POST", "/v1/completions", self._headers(), orjson.dumps(body))
            else:
                headers = self._headers() | {"connection": "close"}
                answer = await connection.ask("POST", _CHAT, headers, self._newcomers_body())
            if self._score.take("newcomer", answer):
                text_of(answer, stream=False)
        finally:
            connection.close()

    async def _burst(self) -> None:
        """Many newcomers at once, more than the engines have time for: some wait in the gateway."""
        await asyncio.gather(*(self._one_of_many() for _ in range(_BURST)))

    async def _one_of_many(self) -> None:
        connection = await Connection.open(self._port)
        try:
            answer = await connection.ask("POST", _CHAT, self._headers(), self._newcomers_body())
            self._score.take("burst", answer)
        finally:
            connection.close()

    # Those who do not wait for an answer, or get none

    async def _leaver(self) -> None:
        """Leaves while sending, while waiting, or in the middle of the answer."""
        chance = self._random
        connection = await Connection.open(self._port)
        try:
            extra = {"max_tokens": 400, "ignore_eos": True}
            messages = [{"role": "user", "content": f"{next(self._numbers)} {self._words(150)}"}]
            body = self._body(messages, stream=chance.random() < 0.8, **extra)
            request = head("POST", _CHAT, self._headers(), len(body)) + body
            sent = chance.choice([len(request) // 2, len(request), len(request), len(request)])
            await connection.send(request[:sent])
            await asyncio.sleep(chance.uniform(0, 0.5))
            if sent == len(request) and chance.random() < 0.7:
                for _ in range(chance.randint(1, 20)):
                    await connection.some()
            self._score.outcomes["left"] += 1
        finally:
            (connection.leave if chance.random() < 0.5 else connection.close)()

    async def _limited(self) -> None:
        """More than its tenant may ask."""
        connection = await Connection.open(self._port)
        try:
            body = self._body([{"role": "user", "content": self._words(10)}], stream=False)
            answer = await connection.ask("POST", _CHAT, self._headers(LIMITED), body)
            self._score.take("limited", answer, (200, 429))
            if answer.status == 429 and "retry-after" not in answer.headers:
                self._score.fail("limited", "429 without retry-after")
        finally:
            connection.close()

    async def _idle(self) -> None:
        """A connection with nothing in it, with half a head, or after an answer."""
        chance = self._random
        admin = int(self._stage.gateway.admin.rpartition(":")[2])
        connection = await Connection.open(chance.choice([self._port, self._port, admin]))
        try:
            kind = chance.randrange(3)
            if kind == 1:
                await connection.send(b"GET /v1/models HTTP/1.1\r\nhost: so")
            elif kind == 2:
                await connection.ask("GET", "/healthz")
            await asyncio.sleep(chance.uniform(1, 40))
            self._score.outcomes["idle"] += 1
        finally:
            (connection.leave if chance.random() < 0.5 else connection.close)()

    async def _mistake(self) -> None:
        """A request that cannot be answered."""
        request, expected = self._random.choice(self._mistakes)()
        connection = await Connection.open(self._port)
        try:
            await connection.send(request)
            self._score.take("mistake", await connection.answer(), (expected,))
        finally:
            connection.close()

    def _all_mistakes(self) -> Sequence[Callable[[], tuple[bytes, int]]]:
        """Each gives a request, and the status of its answer."""

        def post(body: bytes, expected: int, **headers: str) -> tuple[bytes, int]:
            named = self._headers() | {name.replace("_", "-"): value for name, value in headers.items()}
            return head("POST", _CHAT, named, len(body)) + body, expected

        def fine() -> bytes:
            return self._body([{"role": "user", "content": self._words(5)}], stream=False)

        def unknown() -> str:
            return f"{self._random.choice(WORDS)}-{next(self._numbers)}"

        return (
            lambda: post(b'{"model": "' + unknown().encode(), 400),
            lambda: post(orjson.dumps({"model": unknown(), "messages": [{"role": "user", "content": "a"}]}), 404),
            lambda: post(orjson.dumps({"model": MODEL, "messages": unknown()}), 400),
            lambda: post(b'{"model": "demo", "messages": ' + b"[" * 100 + b"]" * 100 + b"}", 400),
            lambda: post(fine(), 401, authorization=f"Bearer {unknown()}"),
            lambda: post(fine(), 400, x_request_timeout=unknown()),
            lambda: post(fine(), 415, content_type=f"text/{unknown()}"),
            lambda: post(fine(), 415, content_encoding="gzip"),
            lambda: post(fine(), 431, x_long=unknown() * 12_000),
            lambda: (head("GET", f"/v1/{unknown()}", self._headers(), 0), 404),
            lambda: (head("DELETE", _CHAT, self._headers(), 0), 405),
            lambda: (f"{unknown()} what\r\n\r\n".encode(), 400),
            lambda: (head("POST", _CHAT, self._headers(), 20 * 1024 * 1024), 413),
        )

    # What they say

    def _headers(self, tenant: str | None = None, session: str | None = None) -> dict[str, str]:
        """With a client's name that is new."""
        chance = self._random
        tenant = tenant or chance.choice(self._tenants)
        headers = {
            "authorization": f"Bearer {self._stage.keys[tenant]}",
            "content-type": _JSON,
            "x-client": f"client-{next(self._numbers)}" if chance.random() < 0.7 else "web",
        }
        if session is not None:
            headers["x-session-id"] = session
        if chance.random() < 0.2:
            headers["x-cache-scope"] = chance.choice(["agents", "reports"])
        return headers

    def _newcomers_body(self) -> bytes:
        emails = (f"Ask {name}.{next(self._numbers)}@example.org." for name in self._random.choices(WORDS, k=_EMAILS))
        parts = itertools.chain.from_iterable(
            (email, self._words(_NEWCOMER_WORDS // _EMAILS) + ".\n") for email in emails
        )
        system = f"{next(self._numbers)} {' '.join(parts)}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": self._words(8)}]
        return self._body(messages, stream=False)

    @staticmethod
    def _body(messages: Sequence[object], *, stream: bool, **extra: object) -> bytes:
        fields: dict[str, object] = {"model": MODEL, "messages": messages, "max_tokens": 48, "stream": stream}
        return orjson.dumps(fields | extra)

    def _tool(self, number: int) -> dict[str, object]:
        parameters = {"type": "object", "properties": {WORDS[number]: {"type": "string"}}}
        return {"type": "function", "function": {"name": f"tool_{number}", "parameters": parameters}}

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(WORDS, k=count))
