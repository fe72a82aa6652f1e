"""Answers about canonicalization in states that a small gateway seldom gets into by itself.

Everything else of an answer is the gateway's own.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from playwright.sync_api import Page, Route

LOOKED_AT = {"requests": 12, "prompt_tokens": 100_000, "conversations": {"tried": 12, "of": 12}}


def rule(name: str, mode: str, net_tokens: int, *, requests: int = 8, lost_tokens: int = 0) -> dict[str, Any]:
    """What the summary shows of a rule."""
    return {
        "rule": name,
        "mode": mode,
        "requests": requests,
        "saved_tokens": max(net_tokens + lost_tokens, 0),
        "lost_tokens": lost_tokens if net_tokens >= 0 else lost_tokens or -net_tokens,
        "net_tokens": net_tokens,
        "points": 100 * net_tokens / 100_000,
        "points_interval": None,
        "gpu_seconds": net_tokens / 10_000,
        "cost": net_tokens / 1_000_000,
    }


def suggestion(**reported: Any) -> dict[str, Any]:
    """A slot to declare."""
    regex = reported.get("regex", "^Customer: (.+)$")
    lines = f"canon:\n  dynamic_suffix:\n    slots:\n      - {json.dumps({'name': 'customer', 'regex': regex})}\n"
    return {
        "name": "customer",
        "regex": regex,
        "varies": "conversation",
        "reason": "user_data",
        "model": "demo",
        "tenant": "acme",
        "source": "web",
        "requests": 4,
        "tokens": 1_200,
        "points": 1.2,
        "yaml": lines,
    } | reported


def reported_in_summary(
    rules: Sequence[Mapping[str, Any]] = (),
    suggestions: Sequence[Mapping[str, Any]] = (),
    looked_at: Mapping[str, Any] = LOOKED_AT,
) -> dict[str, Any]:
    """The summary's part."""
    return {"looked_at": {**LOOKED_AT, **looked_at}, "rules": list(rules), "suggestions": list(suggestions)}


MANY = reported_in_summary(
    [
        rule("all", "observe", 20_400),
        rule("dynamic-suffix", "observe", 18_100, lost_tokens=1_200)
        | {"points_interval": {"low": 16.96, "high": 19.2}},
        rule("tool-order", "apply", 12_000),
        rule("whitespace", "observe", 0, requests=3),
        rule("unicode", "apply", -40),
        rule("json-keys", "apply", -500),
        rule("role-order", "observe", -3_100),
    ],
    [suggestion(), suggestion(name="ticket", varies="request", reason="dynamic_id", regex=r"^Ticket (\d+)$")],
)
"""A rule for every kind of figure that can be shown of one."""

NOT_LOOKED_AT = reported_in_summary(looked_at={"requests": 0, "prompt_tokens": 0})

OF_A_REQUEST: Mapping[str, Any] = {
    "observed": True,
    "left_out": False,
    "applied": ["tool-order"],
    "context_lost": True,
    "rules": [
        {"rule": "dynamic-suffix", "mode": "observe", "edits": 2, "saved_tokens": 500, "lost_tokens": 0},
        {"rule": "tool-order", "mode": "apply", "edits": 1, "saved_tokens": 0, "lost_tokens": 48},
        {"rule": "all", "mode": "observe", "edits": 3, "saved_tokens": 500, "lost_tokens": 0},
    ],
    "edits": [
        {
            "rule": "tool-order",
            "mode": "apply",
            "what": "sorted",
            "path": "tools",
            "said": "2 tools in another order: look, add.",
            "tokens": 0,
            "before": "",
            "after": "",
        },
        {
            "rule": "dynamic-suffix",
            "mode": "observe",
            "what": "moved",
            "path": "messages[0].content",
            "said": "A date and time moved behind the last message.",
            "tokens": 21,
            "before": "Xx xx ‹date and time› xxx.",
            "after": "[xxxxxxx 9]",
        },
        {
            "rule": "dynamic-suffix",
            "mode": "observe",
            "what": "block",
            "path": "messages[1].content",
            "said": "The block with what was moved.",
            "tokens": None,
            "before": "",
            "after": "[Xxxxxxx xxxxxxx]\n[xxxxxxx 9] Xx xx ‹date and time› xxx.",
        },
    ],
}


def answered_with(
    page: Page, summary: Mapping[str, Any] | None = None, request: Mapping[str, Any] | None = None
) -> None:
    """From now on the page gets these parts instead of the gateway's own."""

    def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[Route], None]:
        def answer(route: Route) -> None:
            given = route.fetch()
            if not given.ok:
                route.fulfill(response=given)
                return
            reported = given.json()
            change(reported)
            route.fulfill(response=given, json=reported)

        return answer

    if summary is not None:
        page.route("**/admin/api/summary?*", changed(lambda reported: reported.update(canonicalization=summary)))
    if request is not None:
        page.route("**/admin/api/requests/*", changed(lambda reported: reported.update(canonicalization=request)))
