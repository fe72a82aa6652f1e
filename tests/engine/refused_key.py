"""Check: a replica that refuses the gateway's key, beside one that does not, is no matter of the clients."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from tests.engine.cases import CHAT, user
from tests.engine.client import TIMEOUT, post, stream
from tests.engine.findings import Finding
from tests.engine.gateway import start_gateway
from tests.engine.places import DEMO_TEMPLATE
from tests.engine.replica import START_SECONDS, Ports, Process, start_replica

_CLIENTS = 50


async def refused_key(folder: Path, replicas: list[Process]) -> AsyncIterator[Finding]:
    """A third replica has a key that the gateway does not know."""
    locked = start_replica(folder, "locked", DEMO_TEMPLATE, Ports.free(), ["--api-key", "right"])
    gateway = None
    try:
        locked.wait_ready("/health", START_SECONDS)
        both = [locked, replicas[0]]
        gateway = start_gateway(folder, both, DEMO_TEMPLATE, "one-key", api_keys={"locked": "wrong"})
        gateway.wait_ready("/readyz", 60)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT) as client:
            seen = []
            for number in range(_CLIENTS):
                body = {"messages": [user(f"Question {number}?")], "max_tokens": 2, "temperature": 0}
                seen.append(await (stream if number % 2 else post)(client, CHAT, body))
        log = gateway.log.read_text(errors="replace").splitlines()
        refused = sum('"attempt_failed"' in line and '"status":401' in line for line in log)
    finally:
        if gateway is not None:
            gateway.stop()
        locked.stop()
    served = sum(each.status == 200 and bool(each.text) for each in seen)
    yield Finding(
        "a replica refuses the gateway's key, beside one that does not",
        f"{served} of {_CLIENTS} clients answered, half of them with streams; {refused} attempts refused with 401",
        "all clients, at least one attempt refused",
        served == _CLIENTS and refused > 0,
        [f"{each.status} {each.error}" for each in seen if each.status != 200],
    )
