"""Check: what the engine has evicted is not promised."""

import httpx

from tests.engine.cases import CHAT, system, user
from tests.engine.client import TIMEOUT, Seen, post
from tests.engine.findings import Finding
from tests.engine.replica import BLOCK_SIZE, BLOCKS, Process
from tests.engine.texts import prose

PROMPTS = 44
LEAST_SHARE = 0.95
_SENTENCES = 24


async def evictions(gateway: Process) -> Finding:
    """More prompts than both caches hold, then all again, the latest first: the old ones are gone."""
    async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:

        async def ask(number: int, question: str) -> Seen:
            messages = [system(prose(100 + number, _SENTENCES)), user(question)]
            return await post(client, CHAT, {"messages": messages, "max_tokens": 2, "temperature": 0})

        sent = [await ask(number, "What is this about?") for number in range(PROMPTS)]
        again = [(number, await ask(number, "Who decides?")) for number in reversed(range(PROMPTS))]
    wrong = [(number, seen) for number, seen in again if seen.predicted != seen.confirmed]
    lost = sum(seen.confirmed < seen.counted // 2 for _, seen in again)
    share = 1 - len(wrong) / len(again)
    return Finding(
        f"predicted equals reported when {sum(seen.counted for seen in sent)} tokens went through two caches of"
        f" {BLOCKS * BLOCK_SIZE}, and come again",
        f"{len(again) - len(wrong)} of {len(again)} ({share:.1%}); {len(again) - lost} still cached, {lost} evicted",
        f"at least {LEAST_SHARE:.0%}, some of both kinds",
        share >= LEAST_SHARE and 0 < lost < len(again),
        [
            f"prompt {number}: {seen.predicted} predicted, {seen.confirmed} reported, of {seen.counted} tokens"
            f" ({seen.decision} at {seen.replica})"
            for number, seen in wrong
        ],
    )
