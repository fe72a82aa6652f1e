"""What reasons mixed traffic gets, to compare two versions of the code that gives them.

    PYTHONHASHSEED=0 python -m benchmarks.explain_totals [--requests 20000] [--observed-share 0.125] [--save FILE]
                                                         [--against FILE]

Applications of two tenants take turns, seeded, with real tokens and observed rules: a chat whose users go back and edit
(``chat``), one that drops its oldest messages (``trimmed``), questions with documents in front (``rag``), agents with
sessions, tools and subagents (``agents``), a time in front of everything (``clock``), an id in the middle of the system
prompt (``ids``), tools in another order (``tools``), and prompts like no other (``unseen``). Printed are the CPU time
per request, the missed tokens by reason, and what rules would save, with its interval. ``--save`` writes the reasons
and the reference of every request; ``--against`` prints what differs from such a file: totals by reason, and the first
requests of each application with other reasons. Similar prompts are found by sampled hashes, so that a few references
depend on the seed of hashes: set it.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import orjson

from benchmarks.explain_records import DefaultRecords, guidelines
from benchmarks.overhead.bodies import WORDS
from gateway.config.telemetry_settings import ExplainSettings
from gateway.core.explanation import Explanation, RequestRecord
from gateway.core.request import RequestIdentity
from gateway.explain.worker.explain_messages import Question, QuestionAnswer, WorkerOptions
from gateway.explain.worker.explain_parts import ExplainParts
from gateway.explain.worker.explain_worker import ExplainWorker
from gateway.explain.worker.repeats import Repeats

_AT_ONCE = 24
"""Conversations of an application that take turns."""

_SHOWN = 3
_BETWEEN_SECONDS = 0.1
Messages = list[dict[str, Any]]
Turn = tuple[str, RequestIdentity | None, dict[str, Any], str]
"""Tenant, identity, body and answer."""


def said(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def talk(rng: random.Random, system: str, turns: int, change: Callable[[Messages], Messages] = list) -> Iterator[Turn]:
    """A conversation; ``change`` makes of the whole history what is sent of it."""
    tenant = rng.choice(["shop", "bank"])
    messages: Messages = [{"role": "system", "content": system}]
    for _ in range(turns):
        messages.append({"role": "user", "content": said(rng, rng.randint(5, 120))})
        answer = said(rng, rng.randint(10, 150))
        yield tenant, None, {"messages": change(messages)}, answer
        messages.append({"role": "assistant", "content": answer})


def chat(rng: random.Random) -> Iterator[Turn]:
    for turn in talk(rng, guidelines(f"returns {rng.randrange(3)}"), rng.randint(1, 8)):
        yield turn
        if rng.random() < 0.05 and len(turn[2]["messages"]) > 2:
            edited = [dict(each) for each in turn[2]["messages"]]
            edited[-1]["content"] = said(rng, 20)
            yield turn[0], None, {"messages": edited}, said(rng, 30)


def trimmed(rng: random.Random) -> Iterator[Turn]:
    yield from talk(rng, guidelines("billing"), 10, lambda whole: [whole[0], *whole[1:][-7:]])


def rag(rng: random.Random) -> Iterator[Turn]:
    numbers = rng.sample(range(60), 4)
    documents = "\n\n".join(f"Document {n}: {said(random.Random(n), 150)}" for n in numbers)
    question = {"role": "user", "content": f"{documents}\n\nQuestion: {said(rng, 12)}"}
    yield "shop", None, {"messages": [{"role": "system", "content": guidelines("documents")}, question]}, said(rng, 40)


def tools(names: list[str]) -> list[dict[str, Any]]:
    described = {"type": "object", "properties": {"path": {"type": "string", "description": "Where it is."}}}
    return [
        {
            "type": "function",
            "function": {"name": n, "description": f"{n} {guidelines(n)[:300]}", "parameters": described},
        }
        for n in names
    ]


def agents(rng: random.Random) -> Iterator[Turn]:
    session = f"session-{rng.getrandbits(32):08x}"
    offered = tools(["read", "write", "search", "run"])
    main = list(talk(rng, guidelines("files"), rng.randint(4, 12)))
    for number, (_, _, body, answer) in enumerate(main):
        yield "shop", RequestIdentity(session, "", "", session, True), body | {"tools": offered}, answer
        if number == len(main) // 2:
            for _, _, inner, reply in talk(rng, guidelines("searching"), 3):
                agent = RequestIdentity(session, "agent-1", "", session, True)
                yield "shop", agent, inner | {"tools": offered[:2]}, reply


def clock(rng: random.Random) -> Iterator[Turn]:
    at = datetime(2026, 11, 21, 9, tzinfo=UTC) + timedelta(seconds=rng.randrange(80_000))
    yield from talk(rng, f"It is {at.isoformat()}. {guidelines('invoices')}", 3)


def ids(rng: random.Random) -> Iterator[Turn]:
    rules = guidelines("parcels")
    yield from talk(rng, f"{rules[:2500]} Request {rng.getrandbits(64):016x}. {rules[2500:]}", 2)


def shuffled(rng: random.Random) -> Iterator[Turn]:
    names = ["alpha", "beta", "gamma", "delta", "epsilon"]
    for tenant, identity, body, answer in talk(rng, guidelines("tools"), 3):
        rng.shuffle(names)
        yield tenant, identity, body | {"tools": tools(names)}, answer


def unseen(rng: random.Random) -> Iterator[Turn]:
    yield from talk(rng, f"{said(rng, 600)} {rng.random()}", 1)


APPLICATIONS: dict[str, Callable[[random.Random], Iterator[Turn]]] = {
    "chat": chat, "trimmed": trimmed, "rag": rag, "agents": agents,
    "clock": clock, "ids": ids, "tools": shuffled, "unseen": unseen,
}  # fmt: skip


def mixed(count: int) -> Iterator[tuple[str, Turn]]:
    """Requests with the names of their applications, of which many conversations run at once."""
    rng = random.Random(7)
    running = [(name, begin(rng)) for name, begin in APPLICATIONS.items() for _ in range(_AT_ONCE)]
    while count > 0:
        at = rng.randrange(len(running))
        name, turns = running[at]
        turn = next(turns, None)
        if turn is None:
            running[at] = name, APPLICATIONS[name](rng)
            continue
        count -= 1
        yield name, turn


def explained(count: int, share: float) -> tuple[list[dict[str, Any]], float, list[dict[str, Any]]]:
    """The reasons and the reference of every request, the CPU seconds of explaining them, and the effects of rules."""
    rows: list[dict[str, Any]] = []
    about: dict[str, str] = {}

    class Kept(ExplainParts):
        def add_request(self, record: RequestRecord, explanation: Explanation, gpus: float) -> None:
            super().add_request(record, explanation, gpus)
            reference = explanation.reference
            rows.append(
                {
                    "id": record.request_id,
                    "application": about[record.request_id],
                    "hits": explanation.hits,
                    "missed": {str(each.reason): each.tokens for each in explanation.missed},
                    "reference": reference.request_id if reference else None,
                    "path": explanation.difference.path if explanation.difference else None,
                }
            )

    def build(options: WorkerOptions, now: float) -> ExplainParts:
        parts = Kept(options, now)
        parts.load_tokenizers()
        return parts

    # A moment of the day whose times stand in the prompts: rules only move such as are current.
    now = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
    records, repeats, worker = DefaultRecords(), Repeats(), ExplainWorker(build, lambda: now)
    worker.handle(msgspec.structs.replace(records.options, observed_share=share, journal_requests=count))
    seconds = 0.0
    for name, (tenant, identity, body, answer) in mixed(count):
        [record] = records.of_bodies([(body, answer)])
        known = {} if identity is None else {"identity": identity, "session": identity.session}
        now += _BETWEEN_SECONDS
        record = msgspec.structs.replace(record, at=now, tenant=tenant, tenant_label=tenant, source=name, **known)
        about[record.request_id] = name
        message = repeats.sent(record)[0]
        began = time.process_time()
        worker.handle(message)
        seconds += time.process_time() - began
    [answer] = worker.handle(Question(1, "summary", {"window": "24h"}))
    assert isinstance(answer, QuestionAnswer)
    return rows, seconds, orjson.loads(answer.document)["canonicalization"]["rules"]


def compare(rows: list[dict[str, Any]], before: list[dict[str, Any]]) -> None:
    """Print what differs."""
    for name in APPLICATIONS:
        pairs = [(old, new) for old, new in zip(before, rows, strict=True) if new["application"] == name]
        other = [(old, new) for old, new in pairs if old["missed"] != new["missed"] or old["path"] != new["path"]]
        moved = sum(old["reference"] != new["reference"] for old, new in pairs)
        print(f"{name}: {len(pairs)} requests, {len(other)} with other reasons, {moved} with another reference")
        for old, new in other[:_SHOWN]:
            print(f"  before {old}\n  now    {new}")


def totals(rows: list[dict[str, Any]]) -> Counter[str]:
    counted = Counter({"hits": sum(row["hits"] for row in rows)})
    for row in rows:
        counted.update(row["missed"])
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--observed-share", type=float, default=ExplainSettings().observed_share)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    rows, seconds, rules = explained(arguments.requests, arguments.observed_share)
    before = orjson.loads(arguments.against.read_bytes()) if arguments.against else rows
    print(f"{len(rows)} requests, {seconds / len(rows) * 1e6:.0f} us each")
    now, then = totals(rows), totals(before)
    for name in sorted(now | then, key=lambda each: -now[each]):
        change = f"{now[name] / then[name] - 1:+.2%}" if then[name] else "new"
        print(f"{name:24} {now[name]:12,}" + (f" {then[name]:12,} {change}" if arguments.against else ""))
    for rule in rules:
        bounds = rule["points_interval"] or {}
        print(f"{rule['rule']:24} {rule['net_tokens']:12,} {rule['points']:7.2f} points", *bounds.values())
    if arguments.against:
        compare(rows, before)
    if arguments.save:
        arguments.save.write_bytes(orjson.dumps(rows))


main()
