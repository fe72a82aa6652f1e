"""CPU time per request and memory by the number of conversations that are known.

A million requests over HTTP would take half an hour, so the stages that remember conversations are called in this
process: the encoder, the block hashes, the index of predicted blocks, and the explanations (the handler of their
process, with the records that the gateway would send). Every conversation begins with one request. Once there are so
many, the next turns of conversations drawn at random from all of them are measured, and new conversations.
"""

import gc
import random
import time
from argparse import ArgumentParser, Namespace
from collections import Counter

import msgspec

from benchmarks.explain_records import answered, record_of
from benchmarks.growth.plot import Axis, Plot
from benchmarks.growth.prompts import BLOCK_SIZE, words
from benchmarks.growth.result import Result
from benchmarks.overhead.processes import memory_mib
from gateway.config.telemetry_settings import ExplainSettings
from gateway.core.explanation import SpaceKey
from gateway.core.ids import ModelId, ReplicaId, Target
from gateway.core.kv_events import Medium
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.explain.worker.explain_messages import WorkerOptions
from gateway.explain.worker.explain_parts import ExplainParts
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.index import ReplicaIndex
from gateway.tokenize.block_hashes import ChainHasher
from gateway.tokenize.load_tokenizer import load_local

STAGES = ("encode", "index", "explain")

_MEASURED = 1000
"""Turns, and new conversations, that are measured at each size."""
_TARGETS = [Target(ReplicaId(f"r{number}")) for number in range(8)]
_UNBOUNDED_BLOCKS = 2**40
_SYSTEM = "You are a friendly assistant who knows every product of the shop and answers in a few words."
_WHERE = SpaceKey("m", "tokenizer", "template", "tenant:shop")

Messages = list[dict[str, str]]


class KnownConversations:
    """The stages that remember conversations.

    Attributes:
        spent: CPU seconds by stage.
    """

    def __init__(self) -> None:
        explain = ExplainSettings()
        self._encoder = load_local("builtin:demo")
        self._hasher = ChainHasher()
        self._root = self._hasher.root(ModelId("m"), "", "")
        self._index = ReplicaIndex(
            self._hasher, lambda _: ModelId("m"), dict.fromkeys(Medium, 1.0), _UNBOUNDED_BLOCKS, 30.0
        )
        self._worker = ExplainWorker(ExplainParts, lambda: self._now)
        self._now = 1e9
        self._number = 0
        self._worker.handle(
            WorkerOptions(
                64 << 20,
                explain.journal_requests,
                explain.journal_ttl_seconds,
                explain.reference_mib << 20,
                explain.reference_ttl_seconds,
                explain.seen_blocks,
                None,
                explain.currency,
                {},
            )
        )
        self.spent: Counter[str] = Counter()

    def serve(self, messages: Messages, *, explained: bool) -> None:
        """One request, with or without its explanation."""
        self._number += 1
        self._now += 0.001
        at = [time.thread_time()]
        (tokens,) = self._encoder.encode(Endpoint.CHAT, {"messages": messages})
        at.append(time.thread_time())
        chain = self._hasher.chain(self._root, tokens, BLOCK_SIZE)
        held = [holding.tokens for holding in self._index.holdings([chain], _TARGETS, self._now)]
        chosen = held.index(max(held)) if max(held) > BLOCK_SIZE * 2 else self._number % len(_TARGETS)
        lease = self._index.begin([chain], _TARGETS[chosen], self._now)
        self._index.computed(lease)
        self._index.complete(lease, held[chosen], [], self._now)
        at.append(time.thread_time())
        self.spent.update({"encode": at[1] - at[0], "index": at[2] - at[1]})
        if not explained:
            return
        record = msgspec.structs.replace(
            record_of(answered(messages, self._number)),
            at=self._now,
            where=_WHERE,
            parts=(tokens,),
            prompt_tokens=len(tokens) // TOKEN_BYTES,
            own_tokens=len(tokens) // TOKEN_BYTES,
            predicted_tokens=held[chosen],
            cached_tokens=held[chosen],
        )
        before = time.thread_time()
        self._worker.handle(record)
        self.spent["explain"] += time.thread_time() - before


def conversation(number: int, turns: int) -> Messages:
    """A conversation, always the same for a number; every turn adds two messages to the first one's."""
    rng = random.Random(number)
    messages = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": f"{number}: {words(rng, 60)}"}]
    for _ in range(turns - 1):
        messages.append({"role": "assistant", "content": words(rng, 40)})
        messages.append({"role": "user", "content": words(rng, 20)})
    return messages


def add_arguments(parser: ArgumentParser) -> None:
    counts = [1_000, 10_000, 30_000, 100_000]
    parser.add_argument("--conversations", type=int, nargs="+", default=counts, help="numbers of known conversations")
    parser.add_argument("--explained", type=int, default=30_000, help="so many of them are explained when they begin")


def measure(args: Namespace) -> Result:
    known, rows, begun = KnownConversations(), [], 0
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # as the gateway and the process that explains do
    before = memory_mib("self")
    for count in args.conversations:
        while begun < count:
            known.serve(conversation(begun, 1), explained=begun < args.explained)
            begun += 1
        grown = memory_mib("self") - before
        chosen = random.Random(count).sample(range(count), min(_MEASURED, count))
        turns = _each(known, [conversation(number, 2) for number in chosen])
        new = _each(known, [conversation(begun + number, 1) for number in range(_MEASURED)])
        begun += _MEASURED
        rows.append((count, *turns, *new, grown))
    titles = [f"{kind}, {stage} us" for kind in ("next turn", "new") for stage in STAGES]
    return Result(
        ("known conversations", *titles, "MiB"),
        rows,
        Plot(
            "CPU time of the next turn by number of known conversations",
            Axis("known conversations"),
            Axis("us of CPU", log=False),
            {stage: [(row[0], row[column]) for row in rows] for column, stage in enumerate(STAGES, start=1)},
        ),
        [
            "In process, without HTTP: the stages that remember conversations. Prompts of about 90 and 150 tokens;"
            " eight replicas whose caches never evict; explanations with their default limits. MiB: what the process"
            f" grew by, for all stages together. The first {args.explained:,} conversations are explained when they"
            " begin, the others only when they are measured: explaining takes most of the time of a run, and remembers"
            " a million blocks and 80 MiB of prompts at most."
        ],
    )


def _each(known: KnownConversations, requests: list[Messages]) -> list[float]:
    """Mean microseconds of each stage."""
    known.spent.clear()
    for messages in requests:
        known.serve(messages, explained=True)
    return [1e6 * known.spent[stage] / len(requests) for stage in STAGES]
