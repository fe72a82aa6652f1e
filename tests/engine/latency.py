"""Check: a warm prompt's first token comes in a small fraction of a cold one's time."""

import statistics

import httpx

from tests.engine.cases import CHAT, system, user
from tests.engine.client import TIMEOUT, Seen, stream
from tests.engine.findings import Finding
from tests.engine.replica import Process
from tests.engine.texts import prose

PROMPTS = 5
LARGEST_RATIO = 0.5
_SENTENCES = 53


async def first_tokens(gateway: Process) -> Finding:
    """Prompts of about 1,000 tokens, each asked twice with another question, one after the other."""
    cold: list[Seen] = []
    warm: list[Seen] = []
    async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
        for number in range(PROMPTS):
            rules = system(prose(20 + number, _SENTENCES))
            for question, seen in (("What is this about?", cold), ("Who decides in the end?", warm)):
                body = {"messages": [rules, user(question)], "max_tokens": 4, "temperature": 0}
                seen.append(await stream(client, CHAT, body))
    ratio = statistics.median(w.ttft_seconds / c.ttft_seconds for w, c in zip(warm, cold, strict=True))
    return Finding(
        f"time to first token, {PROMPTS} prompts of {min(s.counted for s in cold)} to {max(s.counted for s in cold)}"
        " tokens, cold and warm",
        f"median {_median(cold):.0f} ms cold, {_median(warm):.0f} ms warm; ratio {ratio:.3f}",
        f"ratio below {LARGEST_RATIO}",
        ratio < LARGEST_RATIO and all(seen.confirmed > 0 for seen in warm),
        [
            f"{c.ttft_seconds * 1000:.0f} ms cold, {w.ttft_seconds * 1000:.0f} ms with {w.confirmed} of {w.counted}"
            " tokens cached"
            for c, w in zip(cold, warm, strict=True)
        ],
    )


def _median(answers: list[Seen]) -> float:
    return statistics.median(seen.ttft_seconds for seen in answers) * 1000
