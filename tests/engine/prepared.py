"""Checks: what the gateway does to a real engine before a request comes, and to a request before the engine sees it."""

import asyncio
import json
import subprocess
from pathlib import Path

import httpx
from tokenizers import Tokenizer

from tests.engine.cases import CHAT, system, user
from tests.engine.client import Seen
from tests.engine.findings import Finding
from tests.engine.gateway import PROGRAM, Gateway
from tests.engine.replica import MODEL, MODEL_FOLDER, SLOTS
from tests.engine.tenants import Tenant, apart, reported, shared
from tests.engine.texts import prose

_SENTENCES = 6
_TOPIC = 7
_AT_ONCE = 2 * SLOTS
"""More than one replica computes at the same time, so that both are used."""


async def warmed(client: httpx.AsyncClient, gateway: Gateway, folder: Path, a: Tenant, b: Tenant) -> Finding:
    """A prefix that was declared for a tenant is warm at every replica when its first requests come."""
    file = folder / "prefixes.json"
    prefix = {"model": MODEL, "tenant": a.id, "messages": [system(prose(_TOPIC, _SENTENCES)), user("Hello")]}
    file.write_text(json.dumps([prefix]))
    done = await asyncio.to_thread(
        subprocess.run,
        [PROGRAM, "warm", str(file), "--url", gateway.admin_url],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    answers = await asyncio.gather(*(a.ask(client, _TOPIC, max_tokens=24) for _ in range(_AT_ONCE)))
    others = await b.ask(client, _TOPIC)
    first: dict[str, Seen] = {}
    for seen in answers:
        first.setdefault(seen.replica, seen)
    return Finding(
        f"prefix-gateway warm with one prefix of tenant A, then {_AT_ONCE} requests of A at once: prompt tokens reused",
        "; ".join(f"{reported(seen)} at {name}" for name, seen in sorted(first.items()))
        + f"; B {reported(others)}; the command ended with {done.returncode}",
        "some in every request and at both replicas, none for B",
        done.returncode == 0 and len(first) == 2 and all(map(shared, answers)) and apart(others),
        [] if done.returncode == 0 else [done.stdout + done.stderr],
    )


async def masked(client: httpx.AsyncClient, tenant: Tenant) -> Finding:
    """Personal data in the leading messages of a tenant with ``personal_data: mask`` does not reach the engine."""
    private = ("anna.schmidt@example.org", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00")
    rules = f"{prose(8, 2)} Write to {private[0]} or pay by {private[1]} or {private[2]}. Be brief."
    body = {"model": MODEL, "messages": [system(rules), user("Why?")], "max_tokens": 1, "return_token_ids": True}
    answer = await client.post(CHAT, json=body, headers={"authorization": f"Bearer {tenant.key}"})
    answer.raise_for_status()
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    prompt = tokenizer.decode(answer.json()["prompt_token_ids"], skip_special_tokens=False)
    seen = [text for text in private if text in prompt]
    begin = prompt.find("Write to")
    return Finding(
        "personal_data: mask; an e-mail address, a card and an IBAN in the system message: the engine's own tokens",
        prompt[begin : prompt.find("Be brief")].strip() if begin >= 0 else prompt[:200],
        "none of them, the rest as it was",
        not seen and prose(8, 2) in prompt and "Be brief." in prompt and "Why?" in prompt,
        [f"seen by the engine: {text}" for text in seen],
    )
