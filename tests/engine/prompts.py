"""Checks: on a real engine, what documents in another order cost, and two versions of a registered prompt.

``python -m tests.engine.report --only prompts`` runs them alone.
"""

import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.engine.cases import system, user
from tests.engine.explained import Asking, Why, asking_through
from tests.engine.findings import Finding
from tests.engine.replica import BLOCK_SIZE, Process
from tests.engine.texts import prose

_DOCUMENTS = 6
_ORDERS = 5
_SENTENCES = 8
_DECLARED = {"name": "tags", "opening": "<document", "closing": "</document>", "id": 'id="([^"]+)"'}


async def prompts(folder: Path, replicas: list[Process]) -> AsyncIterator[Finding]:
    """The same shuffled documents through a gateway without the rule, then through one with it."""
    off = {"rules": {"document-order": "off"}, "document_order": {"documents": [_DECLARED]}}
    on = {"rules": {"document-order": "apply"}, "document_order": {"documents": [_DECLARED]}}
    for rule, canon, topic in (("without document-order", off, 400), ("with document-order", on, 420)):
        name = f"prompts-{rule.replace(' ', '-')}"
        async for asking, _ in asking_through(folder, replicas, name, canon=canon, spaces={"isolation": "none"}):
            orders = _orders(topic)
            answers = [await asking.ask([system(documents), user("Which one is about keys?")]) for documents in orders]
            yield _shuffled(rule, answers, applied=canon is on)
    rules = prose(440, _SENTENCES)
    texts = {"v1": f"{rules} You help {{{{ team }}}}.", "v2": f"{rules} You help {{{{ team }}}}, and no other team."}
    versions = {
        name: {"messages": [{"role": "system", "content": text}], "variables": {"team": None}}
        for name, text in texts.items()
    }
    registered = {"support": {"current": "v1", "versions": versions}}
    async for asking, _ in asking_through(
        folder, replicas, "prompts-versions", prompts=registered, spaces={"isolation": "none"}
    ):
        yield await _versions(asking)


async def _versions(asking: Asking) -> Finding:
    async def ask(template: str) -> Why:
        return await asking.ask([user("Who opens the office?")], template=template, variables={"team": "sales"})

    first, again = await ask("support"), await ask("support@v1")
    new, warm, old = await ask("support@v2"), await ask("support@v2"), await ask("support@v1")
    return Finding(
        "a registered prompt, its version v1 twice, then v2 twice, then v1: what is reused, and why not more",
        f"{first}; {again}; {new}; {warm}; {old}",
        "each version reuses its own tokens only; what v2 has in common with v1 is prompt_version_changed",
        all(each.adds_up() for each in (first, again, new, warm, old))
        and first.hits == new.hits == 0
        and again.hits == old.hits > 0
        and warm.hits > 0
        and new.missed.get("prompt_version_changed", 0) > 0.5 * new.seen.counted,
    )


def _shuffled(rule: str, answers: Sequence[Why], *, applied: bool) -> Finding:
    first, *others = answers
    least = min(each.hits for each in others)
    reordered = [each.missed.get("documents_reordered", 0) for each in others]
    if applied:
        met = all(each.hits >= first.seen.counted - 2 * BLOCK_SIZE and not each.missed.get("documents_reordered")
                  for each in others)  # fmt: skip
        limit = "all of the prompt but its last blocks; no documents_reordered"
    else:
        met = all(tokens > 0.5 * each.seen.counted for tokens, each in zip(reordered, others, strict=True))
        limit = "more than half of each prompt is documents_reordered"
    return Finding(
        f"{_DOCUMENTS} documents in {len(answers)} orders, {rule}: what is reused, and why not more",
        f"at least {least} of {first.seen.counted}; documents_reordered: {', '.join(map(str, reordered))}",
        limit,
        met and all(each.adds_up() for each in answers),
        [] if met else [str(each) for each in answers],
    )


def _orders(topic: int) -> list[str]:
    """System prompts with the same documents; no two of them begin with the same one."""
    documents = [
        f'<document id="d{topic + number}">\n{prose(topic + number, 2)}\n</document>' for number in range(_DOCUMENTS)
    ]
    chance = random.Random(topic)
    orders = []
    for first in range(_ORDERS):
        behind = [each for number, each in enumerate(documents) if number != first]
        chance.shuffle(behind)
        orders.append("Answer from these documents.\n" + "\n".join([documents[first], *behind]))
    return orders
