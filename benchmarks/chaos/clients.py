"""Conversations whose every answer can be checked: what a simulated engine says follows from the prompt's tokens."""

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from benchmarks.chaos.machines import MODEL, Gateway
from benchmarks.overhead.bodies import WORDS
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.engines import payloads
from gateway.simulator.answers import AnswerRequest, Author
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder

_TURNS = 8
_LONGEST_SECONDS = 120.0
_GATEWAY_GONE = (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError, httpx.WriteError)
"""The gateway itself died under the request: only the client can try again, as it does behind any balancer."""


@dataclass
class Score:
    """What clients saw.

    Attributes:
        answered: Right answers.
        streamed: How many of them were streams.
        asked_again: Requests whose gateway died; asked again at another one.
        failed: Requests that got no answer, by what they got instead.
        wrong: Answers that were not the right one.
        prompt_tokens: Of all right answers.
        cached_tokens: Of these, reported as cached.
        replicas: Right answers by replica.
        decisions: Right answers by decision.
    """

    answered: int = 0
    streamed: int = 0
    asked_again: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    replicas: Counter[str] = field(default_factory=Counter)
    decisions: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Score") -> None:
        """Count what others saw as well."""
        for each in dataclasses.fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass(frozen=True)
class _Answer:
    text: str
    finish_reason: str
    usage: dict[str, Any]


class _Wrong(Exception):
    """The answer is none: an error, or an end in the middle."""


class Users:
    """Users who send requests until they are stopped.

    Args:
        gateways: Whom they talk to, one as good as the other.
        seed: Of what they say.
        count: How many.
    """

    def __init__(self, gateways: Sequence[Gateway], seed: int, count: int) -> None:
        self.score = Score()
        self._gateways = gateways
        self._random = random.Random(seed)
        self._count = count
        self._encoder: LocalEncoder = load_local("builtin:demo")
        self._author = Author(self._encoder)
        self._systems = [self._words(random.Random(number), 250) for number in range(6)]
        self._ending = asyncio.Event()

    def end(self) -> None:
        """No new requests from now on."""
        self._ending.set()

    async def talk(self) -> None:
        """Talk; returns when the last answer is there after ``end``."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(trust_env=False, timeout=_LONGEST_SECONDS, limits=limits) as http:
            await asyncio.gather(*(self._user(http, number) for number in range(self._count)))

    async def _user(self, http: httpx.AsyncClient, number: int) -> None:
        chance = random.Random(self._random.randrange(2**32))
        talks = 0
        while not self._ending.is_set():
            talks += 1
            system = chance.choice(self._systems)
            messages: list[dict[str, str]] = [{"role": "system", "content": system}]
            for turn in range(chance.randint(1, _TURNS)):
                if self._ending.is_set():
                    return
                question = f"{number}/{talks}/{turn}: {self._words(chance, 20)}"
                messages.append({"role": "user", "content": question})
                text = await self._ask(http, chance, messages)
                if text is None:
                    break
                messages.append({"role": "assistant", "content": text})
                await asyncio.sleep(chance.uniform(0.05, 0.4))

    async def _ask(self, http: httpx.AsyncClient, chance: random.Random, messages: list[dict[str, str]]) -> str | None:
        fields: dict[str, Any] = {"messages": messages, "max_tokens": chance.choice([40, 120, 400]), "temperature": 0}
        stream = chance.random() < 0.6
        if stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        body = orjson.dumps({"model": MODEL, **fields})
        while True:
            gateway = chance.choice(self._gateways)
            try:
                answer = await self._once(http, gateway, body, stream=stream)
                break
            except _GATEWAY_GONE:
                self.score.asked_again += 1
                await asyncio.sleep(0.05)
            except httpx.TimeoutException:
                self.score.failed[f"no answer within {_LONGEST_SECONDS:.0f} s"] += 1
                return None
            except _Wrong as wrong:
                if "shutting_down" in str(wrong):
                    self.score.asked_again += 1
                    continue
                self.score.failed[str(wrong)] += 1
                return None
        return self._check(fields, answer, stream=stream)

    async def _once(self, http: httpx.AsyncClient, gateway: Gateway, body: bytes, *, stream: bool) -> _Answer:
        headers = {"content-type": "application/json"}
        url = f"{gateway.url}/v1/chat/completions"
        async with http.stream("POST", url, content=body, headers=headers) as response:
            said = await response.aread()
        if response.status_code != 200:
            raise _Wrong(f"status {response.status_code}: {said.decode(errors='replace')[:200]}")
        answer = _of_stream(said) if stream else _of_body(said)
        self.score.replicas[response.headers.get("x-gateway-replica", "?")] += 1
        self.score.decisions[response.headers.get("x-gateway-decision", "?")] += 1
        return answer

    def _check(self, fields: dict[str, Any], answer: _Answer, *, stream: bool) -> str:
        (prompt,) = self._encoder.encode(Endpoint.CHAT, fields)
        right = self._author.write(prompt, 0, AnswerRequest(max_tokens=fields["max_tokens"]))
        tokens = len(prompt) // TOKEN_BYTES
        found = (answer.text, answer.finish_reason, answer.usage.get("prompt_tokens"))
        wanted = (right.text, right.finish_reason, tokens)
        if found != wanted:
            self.score.wrong.append(f"wanted {wanted!r}, got {found!r}")
        elif answer.usage.get("completion_tokens") != len(right.ids):
            self.score.wrong.append(f"{answer.usage} for {len(right.ids)} tokens")
        else:
            self.score.answered += 1
            self.score.streamed += stream
            self.score.prompt_tokens += tokens
            self.score.cached_tokens += (answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return right.text

    @staticmethod
    def _words(chance: random.Random, count: int) -> str:
        return " ".join(chance.choices(WORDS, k=count))


def _of_body(said: bytes) -> _Answer:
    try:
        answer = orjson.loads(said)
        choice = answer["choices"][0]
        return _Answer(choice["message"]["content"], choice["finish_reason"], answer["usage"])
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError) as error:
        raise _Wrong(f"not an answer: {said[:200]!r}") from error


def _of_stream(said: bytes) -> _Answer:
    text: list[str] = []
    reasons: list[str] = []
    ids = set()
    usage: dict[str, Any] = {}
    done = said.rstrip().endswith(b"data: [DONE]")
    for payload in payloads(said):
        chunk = orjson.loads(payload)
        if "error" in chunk:
            raise _Wrong(f"error event: {chunk['error'].get('code')}")
        ids.add(chunk["id"])
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            text.append(choice["delta"].get("content") or "")
            if choice.get("finish_reason"):
                reasons.append(choice["finish_reason"])
    if not done or len(reasons) != 1 or len(ids) != 1:
        raise _Wrong(f"a stream without its end: done {done}, reasons {reasons}, {len(ids)} ids")
    return _Answer("".join(text), reasons[0], usage)
