"""Traffic of several applications with planted faults, and where its tokens have to be found.

What each request has to lose is worked out here from the planted requests alone: from their tokens, from the request
that each was derived from, and from what has been computed before, by whole blocks.
"""

import collections
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from scenario_file import words
from tokens import BLOCK, encoder, prompt_ids, runs

from gateway.core.reasons import Reason

_TURNS = 6
_KEPT_MESSAGES = 5


@dataclass
class Planted:
    """One request.

    Attributes:
        application: Which application sends it.
        tenant: In whose name.
        session: Its session, empty for none.
        body: Its body.
        fault: What is wrong with it; None for nothing.
        derived_from: The request it was made from; None for none.
        answer: What was answered.
    """

    application: str
    tenant: str
    session: str
    body: dict[str, Any]
    fault: Reason | None = None
    derived_from: "Planted | None" = None
    answer: str = ""
    ids: Sequence[int] = field(default_factory=list)

    @property
    def computed(self) -> Sequence[int]:
        """All tokens that the engine computed: the last one of the answer is sampled only."""
        return [*self.ids, *_tokens_of(self.answer)[:-1]]


class Ledger:
    """What every reason has to have in the end."""

    def __init__(self) -> None:
        self.tokens = 0
        self.hits = 0
        self.reasons: collections.Counter[Reason] = collections.Counter()
        self._cached: dict[str, set[int]] = collections.defaultdict(set)
        self._ever: dict[str, set[int]] = collections.defaultdict(set)

    def restart(self) -> None:
        """The engine's cache is empty."""
        self._cached.clear()

    def enter(self, request: Planted) -> None:
        """A request was answered."""
        ids, origin = request.ids, request.derived_from
        others = set().union(*(seen for tenant, seen in self._ever.items() if tenant != request.tenant))
        hits = _longest(ids, self._cached[request.tenant])
        here = max(hits, _longest(ids, self._ever[request.tenant]))
        anywhere = max(here, _longest(ids, others | self._ever[request.tenant]))
        common = _common(origin.computed, ids) if origin else 0
        equal = max(common, anywhere)
        behind = sum(runs(origin.computed[common:], ids[equal:])) if origin and request.fault else 0
        self.tokens += len(ids)
        self.hits += hits
        self.reasons[Reason.REPLICA_RESTARTED] += here - hits
        self.reasons[Reason.TENANT_ISOLATED] += anywhere - here
        self.reasons[Reason.BLOCK_BOUNDARY] += equal - anywhere
        if request.fault:
            self.reasons[request.fault] += behind
        rest = Reason.NEW_CONTENT if equal else Reason.FIRST_SEEN
        self.reasons[rest] += len(ids) - equal - behind
        for blocks in (self._cached, self._ever):
            blocks[request.tenant] |= set(_blocks(request.computed))


def _tokens_of(text: str) -> Sequence[int]:
    return memoryview(encoder().encode_text(text)).cast("I").tolist()


def _blocks(ids: Sequence[int]) -> Iterator[int]:
    return (hash(tuple(ids[:end])) for end in range(BLOCK, len(ids) + 1, BLOCK))


def _longest(ids: Sequence[int], known: set[int]) -> int:
    """Tokens of the longest beginning in whole blocks that is known; the last token is always computed."""
    length = 0
    for number, block in enumerate(_blocks(ids[:-1]), start=1):
        if block not in known:
            break
        length = number * BLOCK
    return length


def _common(before: Sequence[int], after: Sequence[int]) -> int:
    shorter = min(len(before), len(after))
    return next((at for at in range(shorter) if before[at] != after[at]), shorter)


class Applications:
    """Writes the requests of every application.

    Args:
        seed: Another one, another order of things.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._last: dict[str, Planted] = {}
        self._turns: collections.Counter[str] = collections.Counter()

    def schedule(self, counts: dict[str, int]) -> list[str]:
        """Whose turn it is, request by request."""
        order = [name for name, count in counts.items() for _ in range(count)]
        self._random.shuffle(order)
        return order

    def write(self, application: str) -> Planted:
        """The next request of an application."""
        planted = self._writers[application](application)
        planted.ids = prompt_ids(planted.body)
        self._last[planted.session or application] = planted
        return planted

    @property
    def _writers(self) -> dict[str, Callable[[str], Planted]]:
        return {
            "stamped": self._stamped,
            "numbered": self._numbered,
            "shuffled": self._shuffled,
            "blanks": self._blanks,
            "chat": self._chat,
            "trimming": self._trimming,
            "acme-readers": self._reader,
            "globex-readers": self._reader,
            "rag-shuffled": self._retrieved,
            "rag-question-first": self._asked_first,
            "rag-both": self._asked_first_and_shuffled,
        }

    def _single(self, name: str, fault: Reason, system: str, **fields: Any) -> Planted:
        """A request of one turn whose system prompt, or tools, are never the same twice."""
        origin = self._last.get(name)
        messages = [{"role": "system", "content": system}, self._question()]
        return Planted(name, "acme", "", {"messages": messages} | fields, fault if origin else None, origin)

    def _question(self, length: int = 12) -> dict[str, str]:
        """One that was never asked before."""
        return {"role": "user", "content": words(length, self._random.getrandbits(40))}

    def _stamped(self, name: str) -> Planted:
        hour, minute, second = self._random.randrange(24), self._random.randrange(60), self._random.randrange(60)
        stamp = f"2026-11-{self._random.randrange(10, 29)}T{hour:02}:{minute:02}:{second:02}Z"
        return self._single(name, Reason.DYNAMIC_TIME, f"Now: {stamp}\n{words(90, 1)}")

    def _numbered(self, name: str) -> Planted:
        number = f"{self._random.getrandbits(64):016x}"
        return self._single(name, Reason.DYNAMIC_ID, f"x-request-id: {number}\n{words(110, 2)}")

    def _shuffled(self, name: str) -> Planted:
        tools = [_tool(number) for number in range(6)]
        self._random.shuffle(tools)
        return self._single(name, Reason.TOOLS_REORDERED, "Use the tools to answer.", tools=tools)

    def _blanks(self, name: str) -> Planted:
        text = words(100, 3).split(" ")
        at = self._random.randrange(3, 40)
        system = " ".join([*text[:at], "", *text[at:]])
        return self._single(name, Reason.WHITESPACE, system)

    def _retrieved(self, name: str) -> Planted:
        """Documents in another order, and the question behind them."""
        documents = _documents(300)
        self._random.shuffle(documents)
        return self._rag(name, 6, Reason.DOCUMENTS_REORDERED, [*documents, f"Question: {self._question()['content']}"])

    def _asked_first(self, name: str) -> Planted:
        """The question, and the same documents behind it."""
        return self._rag(name, 7, Reason.USER_DATA, [self._question()["content"], *_documents(400)])

    def _asked_first_and_shuffled(self, name: str) -> Planted:
        documents = _documents(500)
        self._random.shuffle(documents)
        return self._rag(name, 8, Reason.USER_DATA, [self._question()["content"], *documents])

    def _rag(self, name: str, seed: int, fault: Reason, pieces: list[str]) -> Planted:
        origin = self._last.get(name)
        messages = [_system(seed), {"role": "user", "content": "\n\n".join(pieces)}]
        return Planted(name, "acme", "", {"messages": messages}, fault if origin else None, origin)

    def _conversation(self, name: str, seed: int, keep: int | None) -> Planted:
        """The next turn of a conversation; at its end another one begins."""
        turn = self._turns[name]
        self._turns[name] += 1
        session = f"{name}-{turn // _TURNS}"
        origin = self._last.get(session)
        asked = self._question(30)
        if origin is None:
            return Planted(name, "acme", session, {"messages": [_system(seed), asked]})
        messages = [*origin.body["messages"][1:], {"role": "assistant", "content": origin.answer}, asked]
        is_cut = keep is not None and len(messages) > keep
        body = {"messages": [_system(seed), *(messages[-keep:] if is_cut and keep else messages)]}
        return Planted(name, "acme", session, body, Reason.HISTORY_TRIMMED if is_cut else None, origin)

    def _chat(self, name: str) -> Planted:
        return self._conversation(name, 4, None)

    def _trimming(self, name: str) -> Planted:
        return self._conversation(name, 5, _KEPT_MESSAGES)

    def _reader(self, name: str) -> Planted:
        """Documents that two tenants read, the one after the other."""
        turn = self._turns[name]
        self._turns[name] += 1
        document = f"Summarize the document.\n{words(160, 7000 + turn)}"
        return Planted(name, name.partition("-")[0], "", {"messages": [{"role": "system", "content": document}]})


def _documents(seed: int) -> list[str]:
    """The documents that an application retrieves for every question."""
    return [f'<document id="{seed + number}">\n{words(40, seed + number)}\n</document>' for number in range(5)]


def _system(seed: int) -> dict[str, str]:
    return {"role": "system", "content": words(60, seed)}


def _tool(number: int) -> dict[str, Any]:
    properties = {name: {"type": "string", "description": words(6, 40 + number)} for name in words(3, number).split()}
    function = {"name": f"tool_{number}", "description": words(10, 80 + number)}
    return {"type": "function", "function": function | {"parameters": {"type": "object", "properties": properties}}}
