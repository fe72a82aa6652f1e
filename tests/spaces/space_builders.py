"""Tenants, a model, and spaces to try things on."""

import dataclasses
from typing import Any

from gateway.core.ids import TenantId
from gateway.core.space import ModelVersion, SpaceEnd
from gateway.core.tenant import Caller, Tenant
from gateway.spaces import PrefixSpaces, SpaceRules

MODEL = ModelVersion("m", "tok", "", "abc", "", 2048)
RULES = SpaceRules("tenant", b"0123456789abcdef", idle_ttl_seconds=60, max_age_seconds=600, max_spaces=100)


class Ends:
    """A ``SpaceObserver`` that keeps what it gets."""

    def __init__(self) -> None:
        self.received: list[SpaceEnd] = []

    def on_space_end(self, end: SpaceEnd) -> None:
        self.received.append(end)

    @property
    def causes(self) -> list[str]:
        return [str(end.cause) for end in self.received]


def tenant(name: str, **more: Any) -> Tenant:
    return Tenant(TenantId(name), **more)


def caller(name: str = "acme", scope: str = "", **more: Any) -> Caller:
    return Caller(tenant(name, **more), scope=scope)


def spaces(*observers: Any, **rules: Any) -> PrefixSpaces:
    # Without isolation, nothing expires by default.
    times = dict.fromkeys(("idle_ttl_seconds", "max_age_seconds")) if rules.get("isolation") == "none" else {}
    return PrefixSpaces(dataclasses.replace(RULES, **times | rules), observers)
