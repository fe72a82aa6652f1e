"""The token numbers of a scenario, from the demo tokenizer and its chat template alone.

    python tests/scenarios/tokens.py tests/scenarios/dynamic_time/iso_in_system_prompt.yaml

prints, for every request of the scenario: its prompt tokens, and against every earlier one how many tokens they have in
common from the first on (the earlier one's answer included, but for its last token: the engine computed that, too), how
many of those fill blocks, and which runs of at least 8 tokens behind the first difference stand in both. From these the
expected numbers of a scenario are worked out by hand.
"""

import difflib
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenario_file import Scenario, load, name_of

from gateway.core.request import Endpoint
from gateway.simulator.answers import AnswerRequest, Author
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder

BLOCK = 16
SHORTEST_RUN = 8
"""Tokens in a row below which equal text is chance."""


@dataclass(frozen=True)
class Counted:
    """One request.

    Attributes:
        ids: Its prompt's tokens.
        answer: Those of the answer, without the end of turn.
        computed: Tokens that the engine computed: all but the last one of the answer.
        text: The answer.
    """

    ids: Sequence[int]
    answer: Sequence[int]
    computed: int
    text: str

    @property
    def whole(self) -> Sequence[int]:
        """What the engine computed, in its order."""
        return [*self.ids, *self.answer][: self.computed]


@dataclass(frozen=True)
class Compared:
    """A request beside an earlier one.

    Attributes:
        tokens: Its prompt tokens.
        common: How many of them from the first on are the earlier one's, too.
        blocks: How many of those fill blocks that the earlier one left in the cache.
        behind: Lengths of the runs behind the first difference that stand in both.
    """

    tokens: int
    common: int
    blocks: int
    behind: Sequence[int]

    @property
    def boundary(self) -> int:
        """Equal tokens that fill no block."""
        return self.common - self.blocks

    @property
    def reusable(self) -> int:
        """Tokens behind the first difference that stand in both."""
        return sum(self.behind)

    @property
    def new(self) -> int:
        """What the earlier one does not have."""
        return self.tokens - self.common - self.reusable


@functools.cache
def encoder(tokenizer: str = "builtin:demo", template: str | None = None) -> LocalEncoder:
    return load_local(tokenizer, chat_template=template)


@functools.cache
def _author() -> Author:
    return Author(encoder())


def prompt_ids(body: Mapping[str, Any], template: str | None = None) -> Sequence[int]:
    """Tokens of a request's only prompt."""
    endpoint = Endpoint.CHAT if "messages" in body else Endpoint.COMPLETIONS
    (part,) = encoder(template=template).encode(endpoint, body)
    return memoryview(part).cast("I").tolist()


def count(scenario: Scenario) -> dict[str, Counted]:
    """Every request of a scenario that has a single prompt and a plain answer."""
    counted: dict[str, Counted] = {}
    answers: dict[str, str] = {}
    for send in scenario.sends():
        name = name_of(send)
        body = scenario.body(send, answers)
        ids = prompt_ids(body, scenario.template(name))
        packed = b"".join(each.to_bytes(4, "little") for each in ids)
        answer = _author().write(packed, 0, AnswerRequest(max_tokens=body["max_tokens"], seed=body.get("seed")))
        answers[name] = answer.text
        spoken = memoryview(encoder().encode_text(answer.text)).cast("I").tolist()
        counted[name] = Counted(ids, spoken, len(ids) + len(answer.ids) - 1, answer.text)
    return counted


def compare(before: Counted, after: Counted, block: int = BLOCK) -> Compared:
    """A request beside an earlier one."""
    common = _common(before.whole, after.ids)
    reused = min(common, before.computed, len(after.ids) - 1)
    behind = runs(before.whole[common:], after.ids[common:])
    return Compared(len(after.ids), common, reused // block * block, behind)


def runs(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Runs of equal tokens, wherever they stand; the longest first, and every token in one of them at most."""
    befores, afters, found = [before], [after], []
    while True:
        best = (0, 0, 0, 0, 0)
        for b, old in enumerate(befores):
            for a, new in enumerate(afters):
                match = difflib.SequenceMatcher(None, old, new, autojunk=False).find_longest_match()
                best = max(best, (match.size, b, a, match.a, match.b))
        size, b, a, at_old, at_new = best
        if size < SHORTEST_RUN:
            return found
        found.append(size)
        old, new = befores.pop(b), afters.pop(a)
        befores += [old[:at_old], old[at_old + size :]]
        afters += [new[:at_new], new[at_new + size :]]


def _common(before: Sequence[int], after: Sequence[int]) -> int:
    shorter = min(len(before), len(after))
    return next((at for at in range(shorter) if before[at] != after[at]), shorter)


def main(paths: Sequence[str]) -> None:
    for path in paths:
        counted = count(load(Path(path)))
        for number, (name, after) in enumerate(counted.items()):
            print(f"{name}: {len(after.ids)} tokens, answer {after.text!r} of {len(after.answer)}")
            for earlier in list(counted)[:number]:
                found = compare(counted[earlier], after)
                print(
                    f"    against {earlier}: {found.common} in common, {found.blocks} of them in blocks and"
                    f" {found.boundary} beyond; behind the difference {found.reusable} {found.behind}, new {found.new}"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
