"""Records of requests for the benchmarks of explanations, as the gateway sends them to the process that explains."""

import json
import random
import time
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec

from benchmarks.held_blocks import TOKENIZER, HeldBlocks
from benchmarks.overhead.bodies import WORDS
from gateway.config.canon_settings import CanonSettings
from gateway.config.telemetry_settings import ExplainSettings
from gateway.context import Encoded, Placed, Served
from gateway.core.canonical import Canonicalized, RuleName, default_mode
from gateway.core.decision import Candidate, Decision, DecisionKind
from gateway.core.explanation import ReplicaPrefix, ReplyChoice, RequestRecord, SpaceKey
from gateway.core.ids import ReplicaId, Target
from gateway.core.outcome import Ending, Outcome, Usage
from gateway.core.prompt import TOKEN_BYTES, TokenizedPrompt, TokenSource
from gateway.core.request import NO_IDENTITY, Endpoint
from gateway.core.settlement import Settlement
from gateway.core.space import SpaceGrant
from gateway.explain.worker.explain_messages import CanonOptions, ModelOptions, WorkerOptions
from gateway.request_record import request_record

KINDS = "next turn", "time in front", "new prompt"
TRAFFIC = "repeated", "next turn", "new conversation", "time in front", "new prompt"
_SYSTEM_PROMPTS = 5
_TURNS = 8
_BETWEEN_SECONDS = 0.1


def conversation(rng: random.Random, system: str, turns: int) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Point {turn}: " + " ".join(rng.choices(WORDS, k=9))})
        messages.append({"role": "assistant", "content": f"Re {turn}: " + " ".join(rng.choices(WORDS, k=40))})
    return [*messages, {"role": "user", "content": "At last " + " ".join(rng.choices(WORDS, k=6))}]


def guidelines(topic: str) -> str:
    return " ".join(f"Guideline {n}: stay friendly about {topic} and quote paragraph {n * 7}." for n in range(110))


def prompts(kind: str, count: int) -> Iterator[list[dict[str, str]]]:
    """The messages of one request after the other, of one kind."""
    rng = random.Random(kind)
    if kind == "next turn":
        per_conversation = 8
        for number in range(-(-count // per_conversation)):
            whole = conversation(rng, guidelines(f"returns {number % 5}"), per_conversation + 1)
            yield from (whole[: 2 + 2 * turn] for turn in range(per_conversation))
    elif kind == "time in front":
        began = datetime(2026, 11, 21, 9, tzinfo=UTC)
        for number in range(count):
            now = began + timedelta(seconds=3 * number)
            yield conversation(rng, f"It is {now.isoformat()}. {guidelines('invoices')}", 6)
    else:
        for _ in range(count):
            yield conversation(rng, " ".join(rng.choices(WORDS, k=1000)) + f" {rng.random()}", 6)


def body_of(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 8}).encode()


def token_ids(messages: list[dict[str, str]]) -> bytes:
    """A token for every word, as good as any tokenizer's here."""
    text = "".join(f" <{message['role']}> {message['content']}" for message in messages)
    return b"".join((zlib.crc32(word.encode()) & 0xFFFF).to_bytes(4, "little") for word in text.split())


def answered(messages: list[dict[str, str]], number: int) -> SimpleNamespace:
    """What the gateway has of a request when it is over, with two replicas."""
    ids = token_ids(messages)
    target = Target(ReplicaId("r0"), 0)
    candidates = tuple(Candidate(Target(ReplicaId(f"r{n}"), 0), 1600 * (1 - n), 0.01, 0.02, 0.03) for n in range(2))
    usage = Usage(prompt_tokens=len(ids) // 4, completion_tokens=8, cached_tokens=1600)
    tenant = SimpleNamespace(id="shop", label="shop")
    facts = SimpleNamespace(prefix_caching=True, kind=None)
    request = SimpleNamespace(
        request_id=f"req-{number}",
        model="m",
        endpoint="/v1/chat/completions",
        caller=SimpleNamespace(tenant=tenant, application=None),
        headers=[(b"host", b"x"), (b"user-agent", b"web/2.1"), (b"content-type", b"application/json")],
        identity=NO_IDENTITY,
        dialect="",
        body=body_of(messages),
        fields={"messages": messages},
        stream=False,
        received_at=time.monotonic(),
        warmup_target=None,
    )
    prompt = TokenizedPrompt((ids,), TokenSource.LOCAL)
    rates = SimpleNamespace(prefill_seconds_per_token=1e-4)
    replica = SimpleNamespace(facts=facts, usage_details=False, speed=SimpleNamespace(rates=rates))
    decision = Decision(target, DecisionKind.WARM, 1600, "cost", candidates)
    chains = (SimpleNamespace(block_size=16),)
    return SimpleNamespace(
        encoded=Encoded(
            request,
            request,
            SimpleNamespace(template_tells_time=False, tools_first=False),
            "web",
            SpaceGrant("a1b2c3d4", ""),
            prompt=prompt,
            tokens=prompt.tokens,
            is_text=False,
        ),
        served=Served(
            Placed(decision, replica, {}, chains, (), indexed=True),
            Outcome(Ending.COMPLETE, 200, True, None, 0.2, usage),
            time.monotonic(),
            0,
            None,
        ),
        replies=(ReplyChoice("hello there", None),),
        settled=Settlement(
            request_id=request.request_id,
            model=request.model,
            endpoint=request.endpoint,
            decision=decision,
            ending=Ending.COMPLETE,
            status=200,
            failed_attempts=0,
            failures=(),
            streamed=False,
            token_source=TokenSource.LOCAL,
            prompt_tokens=usage.prompt_tokens,
            predicted_tokens=1600,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            parity=True,
            saved_prefill_seconds=0.1,
            ttft_seconds=None,
            seconds=0.2,
            stages=(("encode", 0.001), ("hash", 0.0002), ("place", 0.0002)),
            space="a1b2c3d4",
            prefill_seconds_per_token=1e-4,
        ),
    )


def record_of(request: SimpleNamespace, *, with_text: bool = True) -> RequestRecord:
    return request_record(request.encoded, request.served, request.settled, request.replies, with_text=with_text)


Exchange = tuple[list[dict[str, str]], str]
"""The messages of a request, and the text of the answer."""


def traffic(kind: str, count: int) -> tuple[list[Exchange], list[Exchange]]:
    """What comes before, and the requests of one kind behind it."""
    rng = random.Random(kind)
    systems = [guidelines(f"returns {number}") for number in range(_SYSTEM_PROMPTS)]
    if kind == "next turn":
        # Conversations take turns, and the answer to a turn is part of the next one.
        wholes = [conversation(rng, systems[n % _SYSTEM_PROMPTS], _TURNS + 1) for n in range(-(-count // (_TURNS - 1)))]
        turns = [(whole[: 2 + 2 * turn], whole[2 + 2 * turn]["content"]) for turn in range(_TURNS) for whole in wholes]
        return turns[: len(wholes)], turns[len(wholes) : len(wholes) + count]
    if kind == "repeated":
        few = [(conversation(rng, systems[n % _SYSTEM_PROMPTS], 6), "Hello there.") for n in range(50)]
        return 2 * few, [few[number % len(few)] for number in range(count)]
    if kind == "new conversation":
        all_ = [conversation(rng, systems[n % _SYSTEM_PROMPTS], 6) for n in range(_SYSTEM_PROMPTS + count)]
    else:
        all_ = list(prompts(kind, _SYSTEM_PROMPTS + count))
    exchanges = [(messages, "Hello there.") for messages in all_]
    return exchanges[:_SYSTEM_PROMPTS], exchanges[_SYSTEM_PROMPTS:]


class DefaultRecords:
    """Records as a gateway with default settings sends them: a real tokenizer, observed rules, and hits of all that was
    sent before, at one of two replicas.

    Attributes:
        options: The options that the gateway sends with them.
    """

    def __init__(self) -> None:
        self._cache = HeldBlocks()
        self._number = 0
        canon = CanonOptions(CanonSettings().model_dump_json().encode(), {"m": ModelOptions(TOKENIZER)})
        self.options = WorkerOptions(
            64 << 20, 5000, 3600.0, 128 << 20, 3600.0, 1_000_000, None, "USD", {}, canon,
            observed_share=ExplainSettings().observed_share,
        )  # fmt: skip

    def of(self, exchanges: Iterable[Exchange]) -> Iterator[RequestRecord]:
        """The records of requests, one after the other."""
        return self.of_bodies(({"messages": messages}, reply) for messages, reply in exchanges)

    def of_bodies(self, bodies: Iterable[tuple[dict[str, Any], str]]) -> Iterator[RequestRecord]:
        """The records of requests that have more than messages."""
        for fields, reply in bodies:
            self._number += 1
            yield self._record(fields, reply)

    def _record(self, fields: dict[str, Any], reply: str) -> RequestRecord:
        encoder = self._cache.encoder
        (ids,) = encoder.encode(Endpoint.CHAT, fields)
        answer = encoder.encode_text(reply)
        tokens = len(ids) // TOKEN_BYTES
        held = self._cache.compute_tokens(ids, answer)
        return msgspec.structs.replace(
            record_of(answered(fields["messages"], self._number)),
            body=json.dumps({"model": "m", "max_tokens": 8} | fields).encode(),
            at=1e9 + self._number * _BETWEEN_SECONDS,
            where=SpaceKey("m", encoder.tokenizer_id, encoder.template_hash, context_limit=1 << 20),
            parts=(ids,),
            replies=(ReplyChoice(reply, answer),),
            prompt_tokens=tokens,
            own_tokens=tokens,
            predicted_tokens=held,
            cached_tokens=held,
            holders=(ReplicaPrefix("r0", 0, held, 0.01, 0.02, 0.03), ReplicaPrefix("r1", 0, 0, 0.01, 0.3, 0.4)),
            canonical=Canonicalized(modes=tuple(map(default_mode, RuleName)), owner="shop\0\0\0"),
        )
