"""Tenants of a gateway under test, and what they ask."""

from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.core.api_keys import hash_key, new_key
from tests.engine.cases import CHAT, system, user
from tests.engine.client import Seen, post
from tests.engine.texts import prose

SECRET = "the engines' salts in this check are made with it"
_SENTENCES = 6
"""Of a prompt's common part: about 130 tokens, four blocks."""


@dataclass(frozen=True)
class Tenant:
    """One tenant with one key.

    Attributes:
        id: Its name.
        options: Its further settings.
    """

    id: str
    options: dict[str, Any] = field(default_factory=dict)
    key: str = field(default_factory=new_key)

    @property
    def settings(self) -> dict[str, Any]:
        """Its entry under ``tenants``."""
        return {"id": self.id, "keys": [hash_key(self.key)], **self.options}

    async def ask(self, client: httpx.AsyncClient, topic: int, **fields: Any) -> Seen:
        """Ask about one of the topics: two requests with the same topic have the same prompt.

        Raises:
            RuntimeError: it was not answered.
        """
        body = {"messages": [system(prose(topic, _SENTENCES)), user("Why?")], "max_tokens": 1, "temperature": 0}
        seen = await post(client, CHAT, body | fields, authorization=f"Bearer {self.key}")
        if seen.status != 200:
            raise RuntimeError(f"{self.id}: {seen.status} {seen.error}")
        return seen


def reported(seen: Seen) -> str:
    """How much was reused, for people."""
    return f"{seen.confirmed} of {seen.counted}"


def shared(seen: Seen) -> bool:
    """Whether the engine reused something."""
    return seen.confirmed > 0


def apart(seen: Seen) -> bool:
    """Whether the engine reused nothing, and the gateway knew."""
    return seen.confirmed == seen.predicted == 0
