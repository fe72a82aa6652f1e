"""Checks: whether a real model answers the same, at temperature 0, when a rule changed its prompt."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import httpx

from gateway.core.canonical import RuleName
from tests.engine.cases import CHAT, assistant, system, user
from tests.engine.client import Seen, post
from tests.engine.findings import Finding
from tests.engine.tenants import Tenant
from tests.engine.texts import prose

PROMPTS = 32
TRIM = {"start": 0.15, "step": 0.1}
"""``canon.history_trim``: so soon that short conversations are cut."""
_NOW = datetime.now(UTC)
_ANSWER_TOKENS = 16
_AT_ONCE = 2

_QUESTIONS = (
    "Who takes care of this?",
    "Tell me about the rules in one sentence.",
    "When does the office open?",
    "Write a short greeting for a new colleague.",
    "Name two things that may go wrong.",
    "What is the capital of France?",
    "Can I call you back tomorrow?",
    "Wie heißt das auf Deutsch?",
)

Messages = list[dict[str, Any]]


class Dirty(NamedTuple):
    """A prompt in which a rule finds something.

    Attributes:
        fields: As it is sent.
        clean: The same without what the rule fixes, where the rule has to give exactly that.
    """

    fields: dict[str, Any]
    clean: dict[str, Any] | None = None


def _lines(number: int) -> list[str]:
    return prose(500 + number, 5).split(". ")


def _question(number: int) -> dict[str, Any]:
    return user(f"{_QUESTIONS[number % len(_QUESTIONS)]} (case {number})")


def _unicode(number: int) -> Dirty:
    letters = "Cafe\u0301 Zu\u0308rich, garc\u0327on\u200b, A\u030angstro\u0308m\ufeff"
    return Dirty({"messages": [system(f"{letters}. {prose(500 + number, 5)}"), _question(number)]})


def _whitespace(number: int) -> Dirty:
    ends = random.Random(number)
    noisy = "".join(
        f"{line}{ends.choice((' ', '  ', chr(9), ''))}{ends.choice((chr(10), chr(13) + chr(10)))}"
        for line in _lines(number)
    )
    messages: Messages = [system(f"{noisy}Be brief. \nThank you."), _question(number)]
    clean: Messages = [system("\n".join([*_lines(number), "Be brief.", "Thank you."])), _question(number)]
    return Dirty({"messages": messages}, {"messages": clean})


def _role_order(number: int) -> Dirty:
    first, second = prose(500 + number, 3), prose(600 + number, 2)
    return Dirty({"messages": [system(first), user("Hello!"), system(second), _question(number)]})


def _tools(number: int) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": f"{name}_{number}",
                "description": f"Tells the {name} of a place.",
                "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
            },
        }
        for name in ("archive", "tides", "weather")
    ]


def _with_tools(number: int, tools: list[dict[str, Any]]) -> dict[str, Any]:
    messages = [system(prose(500 + number, 3)), _question(number)]
    return {"messages": messages, "tools": tools, "tool_choice": "none"}


def _tool_order(number: int) -> Dirty:
    tools = _tools(number)
    return Dirty(_with_tools(number, [tools[2], tools[0], tools[1]]), _with_tools(number, tools))


def _json_keys(number: int) -> Dirty:
    def backwards(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: backwards(value[key]) for key in reversed(value)}
        return value

    tools = _tools(number)
    return Dirty(_with_tools(number, [backwards(tool) for tool in tools]), _with_tools(number, tools))


def _dynamic_suffix(number: int) -> Dirty:
    now = _NOW + timedelta(minutes=number)
    front = f"Current time: {now:%Y-%m-%d %H:%M}\nSession ID: {random.Random(number).getrandbits(64):016x}\n"
    return Dirty({"messages": [system(front + prose(500 + number, 5)), _question(number)]})


def _history_trim(number: int) -> Dirty:
    messages: Messages = [system(prose(500 + number, 3))]
    for turn in range(9):
        messages += [user(f"Point {turn}: {prose(number + turn, 1)}"), assistant(f"Noted: {prose(turn, 1)}")]
    return Dirty({"messages": [*messages, _question(number)]})


_DIRTY: dict[RuleName, Callable[[int], Dirty]] = {
    RuleName.WHITESPACE: _whitespace,
    RuleName.JSON_KEYS: _json_keys,
    RuleName.TOOL_ORDER: _tool_order,
    RuleName.UNICODE: _unicode,
    RuleName.ROLE_ORDER: _role_order,
    RuleName.DYNAMIC_SUFFIX: _dynamic_suffix,
    RuleName.HISTORY_TRIM: _history_trim,
}
_NOISE = {
    RuleName.WHITESPACE: "white space at line ends",
    RuleName.JSON_KEYS: "tools with their keys in another order",
    RuleName.TOOL_ORDER: "tools in another order",
}


class _Answers:
    """Asks for answers, two at a time, and remembers them."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._known: dict[tuple[str, str], Seen] = {}

    async def of(self, tenant: Tenant, prompts: Sequence[dict[str, Any]], *, anew: bool = False) -> list[Seen]:
        """A tenant's answers to all prompts, those to known ones as they were, or ``anew``."""

        async def one(fields: dict[str, Any]) -> Seen:
            body = {"max_tokens": _ANSWER_TOKENS, "temperature": 0, **fields}
            known = tenant.id, json.dumps(body)
            if known in self._known and not anew:
                return self._known[known]
            async with self._gate:
                seen = await post(self._client, CHAT, body, authorization=f"Bearer {tenant.key}")
            if seen.status != 200:
                raise RuntimeError(f"{tenant.id}: {seen.status} {seen.error}")
            self._known[known] = seen
            return seen

        return list(await asyncio.gather(*map(one, prompts)))


async def answers(client: httpx.AsyncClient, plain: Tenant, single: Sequence[Tenant]) -> AsyncIterator[Finding]:
    """Rule by rule: prompts as they are sent, and with the rule applied.

    Args:
        client: Of the gateway.
        plain: A tenant for whom no rule is applied.
        single: Tenants for whom one rule is applied each, in the order of ``RuleName``.
    """
    asking = _Answers(client)
    by_rule = dict(zip(RuleName, single, strict=True))
    yield await _again(asking, plain)
    for rule, dirty in _DIRTY.items():
        prompts = [dirty(number) for number in range(PROMPTS)]
        sent = [prompt.fields for prompt in prompts]
        applied = await asking.of(by_rule[rule], sent)
        clean = [prompt.clean for prompt in prompts if prompt.clean is not None]
        if clean:
            yield _lossless(rule, applied, await asking.of(plain, clean))
        if rule is RuleName.JSON_KEYS:
            yield _in_order(await asking.of(by_rule[rule], clean), await asking.of(plain, clean))
        yield _honest(rule, applied, await asking.of(plain, sent))


async def _again(asking: _Answers, plain: Tenant) -> Finding:
    prompts = [_dynamic_suffix(number).fields for number in range(PROMPTS)]
    same = _same(await asking.of(plain, prompts), await asking.of(plain, prompts, anew=True))
    return Finding(
        f"{PROMPTS} prompts at temperature 0, the same again, most of it cached then: answers unchanged",
        f"{same} of {PROMPTS} ({same / PROMPTS:.0%})",
        "reported: what the engine itself keeps",
        met=True,
    )


def _lossless(rule: RuleName, applied: Sequence[Seen], clean: Sequence[Seen]) -> Finding:
    same = _same(applied, clean)
    return Finding(
        f"{PROMPTS} prompts with {_NOISE[rule]}, {rule} applied, against the same prompts without:"
        " answers unchanged at temperature 0",
        f"{same} of {PROMPTS}; {_changed(applied, rule)} of the prompts were changed",
        "all, all changed",
        same == PROMPTS == _changed(applied, rule),
        _differences(applied, clean),
    )


def _in_order(applied: Sequence[Seen], plain: Sequence[Seen]) -> Finding:
    same = _same(applied, plain)
    return Finding(
        f"{PROMPTS} prompts with tools whose keys are in order, json-keys applied, against off:"
        " answers unchanged at temperature 0",
        f"{same} of {PROMPTS}; {_changed(applied, RuleName.JSON_KEYS)} of the prompts were changed",
        "all, none changed",
        same == PROMPTS and not _changed(applied, RuleName.JSON_KEYS),
        _differences(applied, plain),
    )


def _honest(rule: RuleName, applied: Sequence[Seen], sent: Sequence[Seen]) -> Finding:
    same, changed = _same(applied, sent), _changed(applied, rule)
    return Finding(
        f"{PROMPTS} prompts as they are sent, and with {rule}: answers unchanged at temperature 0",
        f"{same} of {PROMPTS} ({same / PROMPTS:.0%}); {changed} of the prompts were changed",
        "reported; all prompts changed",
        changed == PROMPTS,
    )


def _same(some: Sequence[Seen], others: Sequence[Seen]) -> int:
    return sum(one.text == other.text for one, other in zip(some, others, strict=True))


def _changed(seen: Sequence[Seen], rule: RuleName) -> int:
    return sum(rule in each.headers.get("x-gateway-canonical", "").split(",") for each in seen)


def _differences(some: Sequence[Seen], others: Sequence[Seen]) -> list[str]:
    return [
        f"prompt {number}: {one.text!r} against {other.text!r}"
        for number, (one, other) in enumerate(zip(some, others, strict=True))
        if one.text != other.text
    ]
