"""Check: the gateway counts the tokens the engine counts, and what the engine refuses is refused by the engine."""

import httpx

from tests.engine.cases import CASES, CHAT, REFUSED
from tests.engine.client import TIMEOUT, post
from tests.engine.findings import Finding
from tests.engine.replica import MODEL_FOLDER, Process
from tests.engine.tokens import Comparison, compare, verdicts

LEAST_REQUESTS = 60


def rendered(renderer: Process) -> list[Finding]:
    """Token ids against the engine's ``…/render``, the model's own chat template and three others."""
    cases = [case for case in CASES if not case.asked]
    comparisons = compare(renderer.url, str(MODEL_FOLDER), cases, own_template="the model's own")
    findings = []
    for template in dict.fromkeys(comparison.template for comparison in comparisons):
        mine = [comparison for comparison in comparisons if comparison.template == template]
        counts = verdicts(mine)
        findings.append(
            Finding(
                f"token ids equal to the engine's render, template: {template}",
                f"{counts['equal']} of {len(mine)}",
                f"all, of at least {LEAST_REQUESTS}",
                counts["equal"] == len(mine) >= LEAST_REQUESTS,
                [_explained(comparison) for comparison in mine if comparison.verdict != "equal"],
            )
        )
    return findings


def _explained(comparison: Comparison) -> str:
    sent = f"{comparison.case}: {comparison.verdict}"
    if comparison.verdict == "different":
        assert comparison.engine is not None
        assert comparison.gateway is not None
        return f"{sent}, {sum(map(len, comparison.gateway))} tokens for {sum(map(len, comparison.engine))}"
    return f"{sent} ({comparison.note})"


async def served(gateway: Process) -> Finding:
    """``x-gateway-prompt-tokens`` against ``usage.prompt_tokens`` of the real answer."""
    exceptions = []
    async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
        for case in CASES:
            seen = await post(client, case.endpoint, {**case.body, "max_tokens": 1, "temperature": 0})
            reported = seen.usage.get("prompt_tokens")
            if seen.status != 200:
                exceptions.append(f"{case.name}: {seen.status} {seen.error}")
            elif seen.counted != reported:
                exceptions.append(f"{case.name}: {seen.counted} tokens for {reported}")
    return Finding(
        "prompt tokens equal to usage.prompt_tokens of the answer, through the gateway",
        f"{len(CASES) - len(exceptions)} of {len(CASES)}",
        f"all, of at least {LEAST_REQUESTS}",
        not exceptions and len(CASES) >= LEAST_REQUESTS,
        exceptions,
    )


async def refused(gateway: Process, replica: Process) -> Finding:
    """What the engine refuses: the client sees the engine's own status and error."""
    exceptions = []
    async with (
        httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as through,
        httpx.AsyncClient(base_url=replica.url, timeout=TIMEOUT) as direct,
    ):
        for case in REFUSED:
            expected = await post(direct, case.endpoint, case.body)
            seen = await post(through, case.endpoint, case.body)
            if not 400 <= expected.status < 500:
                exceptions.append(f"{case.name}: the engine itself answers {expected.status}")
            elif (seen.status, seen.error) != (expected.status, expected.error):
                exceptions.append(f"{case.name}: {seen.status} {seen.error} for {expected.status} {expected.error}")
    return Finding(
        "the engine's refusals reach the client unchanged",
        f"{len(REFUSED) - len(exceptions)} of {len(REFUSED)}",
        "all",
        not exceptions,
        exceptions,
    )


async def warm_route(gateway: Process, prompt: str) -> Finding:
    """The second request with a shared prefix: where it goes, and what the engine had cached of it."""
    bodies = [
        {
            "messages": [{"role": "system", "content": prompt}, {"role": "user", "content": question}],
            "max_tokens": 4,
            "temperature": 0,
        }
        for question in ("What is the first thing to check?", "And what comes last?")
    ]
    async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
        first, second = [await post(client, CHAT, body) for body in bodies]
    return Finding(
        "second request with a shared prefix",
        f"{first.decision} at {first.replica}, then {second.decision} at {second.replica}: {second.predicted} tokens"
        f" predicted, {second.confirmed} of {second.counted} reported as cached",
        "cold, then warm at the same replica; predicted = reported > 0",
        (first.decision, second.decision) == ("cold", "warm")
        and first.replica == second.replica
        and second.predicted == second.confirmed > 0,
    )
