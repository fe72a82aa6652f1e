"""A gateway with tenants, and what a test asks it in their names."""

from typing import Any

import httpx
from running_gateway import CHAT, RunningGateway

from gateway.core.api_keys import hash_key

SECRET = "a secret of sixteen characters and more"
SYSTEM = "You answer questions about parcels, invoices and returns. " * 12


def key(tenant: str) -> str:
    return f"pgw_{tenant}-key-of-this-test"


def tenant(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "keys": ({"hash": hash_key(key(name)), "id": f"{name}-key"},)} | more


def sections(*tenants: dict[str, Any], **spaces: Any) -> dict[str, Any]:
    """Sections of the configuration for these tenants."""
    return {"tenants": tenants, "spaces": {"secret": SECRET} | spaces}


async def ask_as(
    gateway: RunningGateway, name: str, text: str = "Hello.", *, headers: dict[str, str] | None = None, **fields: Any
) -> httpx.Response:
    """A question behind the common system prompt, with a tenant's key."""
    body = {
        "model": "demo",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
        "max_tokens": 2,
    } | fields
    return await gateway.http.post(CHAT, json=body, headers={"authorization": f"Bearer {key(name)}"} | (headers or {}))


def cached(answer: httpx.Response) -> int:
    """Prompt tokens that the engine took from its cache; the gateway must have foreseen it."""
    assert answer.status_code == 200, answer.text
    details = answer.json()["usage"]["prompt_tokens_details"]
    confirmed = details["cached_tokens"] if details else 0  # SGLang leaves it out when it is zero
    assert int(answer.headers["x-gateway-prefix-tokens"]) == confirmed
    return confirmed


def error(answer: httpx.Response) -> tuple[int, str]:
    reported = answer.json()["error"]
    assert set(reported) == {"message", "type", "param", "code"}
    return answer.status_code, reported["code"]
