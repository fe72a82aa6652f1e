"""Merges the admin documents of several workers into one. Pure: documents in, a document out."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.replica_state import ReplicaState

Document = Mapping[str, Any]

_BAD_STATES = [str(state) for state in ReplicaState]
"""From the best to the worst."""


def replicas(answers: Sequence[Document]) -> dict[str, Any]:
    """``GET /admin/api/replicas``: what is in flight is summed, and a state is the worst that any worker sees.

    The state that each worker has learned for itself (``index``, ``events``, ``learned``) is that of the first one.
    """
    return {"replicas": [_replica(rows) for rows in _by_id(answers, "replicas")]}


def prefixes(answers: Sequence[Document], limit: int) -> dict[str, Any]:
    """``GET /admin/api/prefixes``: requests are summed; a replica's holding is the maximum of all workers."""
    found = [_prefix(rows) for rows in _by_id(answers, "prefixes")]
    # Each document is sorted, by more than its fields: a prefix keeps its best position.
    rank: dict[str, int] = {}
    for answer in answers:
        for place, row in enumerate(answer["prefixes"]):
            rank[row["id"]] = min(place, rank.get(row["id"], place))
    found.sort(key=lambda prefix: (rank[prefix["id"]], -prefix["requests"]))
    return dict(answers[0]) | {"prefixes": found[:limit]}


def spaces(answers: Sequence[Document], limit: int) -> dict[str, Any]:
    """``GET /admin/api/spaces``: figures are summed where workers have a space in common."""
    found = [_space(rows) for rows in _by_id(answers, "spaces")]
    return {"spaces": found[:limit], "more": len(found) > limit or any(answer["more"] for answer in answers)}


def warm(answers: Sequence[Document]) -> dict[str, Any]:
    """``GET /admin/api/warm``: the jobs of all, and the sums of budgets and totals; what is declared is the same."""
    causes: dict[str, list[Document]] = {}
    for answer in answers:
        for row in answer["totals"]:
            causes.setdefault(row["cause"], []).append(row)
    return dict(answers[0]) | {
        "jobs": [job for answer in answers for job in answer["jobs"]],
        "again": _summed([answer["again"] for answer in answers]),
        "totals": [_summed(rows) for rows in causes.values()],
    }


def _summed(rows: Sequence[Document]) -> dict[str, Any]:
    """Numbers are added up, also in mappings; everything else is that of the first row."""
    summed = dict(rows[0])
    for name, value in rows[0].items():
        if isinstance(value, Mapping):
            summed[name] = _summed([row[name] for row in rows])
        elif isinstance(value, int | float) and not isinstance(value, bool):
            summed[name] = round(sum(row[name] for row in rows), 4)
    return summed


def reset(answers: Sequence[Document]) -> dict[str, Any]:
    """``POST /admin/api/spaces/reset``: what ended anywhere."""
    ended = [rows[0] for rows in _by_id(answers, "spaces")]
    return {"reset": len(ended), "spaces": ended}


def drain(answers: Sequence[Document]) -> dict[str, Any]:
    """``POST /admin/api/replicas/drain``: what is in flight is summed."""
    return dict(answers[0]) | {"requests": sum(answer["requests"] for answer in answers)}


def _by_id(answers: Sequence[Document], name: str) -> list[list[Document]]:
    """The rows of all answers, those with the same id together, in the order in which they first come."""
    found: dict[str, list[Document]] = {}
    for answer in answers:
        for row in answer[name]:
            found.setdefault(row["id"], []).append(row)
    return list(found.values())


def _replica(rows: Sequence[Document]) -> dict[str, Any]:
    up = _values(rows, "up")
    prediction = {
        name: value if name == "window_seconds" else sum(row["prediction"][name] for row in rows)
        for name, value in rows[0]["prediction"].items()
    }
    return dict(rows[0]) | {
        "state": max(_values(rows, "state"), key=_BAD_STATES.index),
        "accepts": any(_values(rows, "accepts")),
        "up": True if True in up else False if False in up else None,
        "warming": any(_values(rows, "warming")),
        "failures_in_a_row": max(_values(rows, "failures_in_a_row")),
        "silent_seconds": max(_values(rows, "silent_seconds")),
        "several_engines": any(_values(rows, "several_engines")),
        "left_out_seconds": max(_values(rows, "left_out_seconds")),
        "requests": sum(_values(rows, "requests")),
        "prefill_tokens_in_flight": sum(_values(rows, "prefill_tokens_in_flight")),
        "prompt_finding": max(_values(rows, "prompt_finding")),
        "refusal": max(_values(rows, "refusal")),
        "prediction": prediction,
    }


def _prefix(rows: Sequence[Document]) -> dict[str, Any]:
    held = {name for row in rows for name in row["held"]}
    latest = max(rows, key=lambda row: row["last_used"])
    return dict(latest) | {
        "requests": round(sum(_values(rows, "requests")), 2),
        "reused_tokens": sum(_values(rows, "reused_tokens")),
        "held": {name: max(row["held"].get(name, 0) for row in rows) for name in sorted(held)},
    }


def _space(rows: Sequence[Document]) -> dict[str, Any]:
    # Alive as long as it is so anywhere.
    first = next((row for row in rows if row["state"] == "alive"), rows[0])
    findings: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        for finding in row["personal_data"]:
            key = tuple(value for name, value in finding.items() if name not in ("requests", "shared"))
            before = findings.get(key, {"requests": 0, "shared": False})
            findings[key] = dict(finding) | {
                "requests": before["requests"] + finding["requests"],
                "shared": before["shared"] or finding["shared"],
            }
    return dict(first) | {
        "born_at": min(_values(rows, "born_at")),
        "used_at": max(_values(rows, "used_at")),
        "expires_at": max((each for each in _values(rows, "expires_at") if each is not None), default=None),
        "personal_data": list(findings.values()),
        **{name: sum(_values(rows, name)) for name in ("requests", "prompt_tokens", "cached_tokens")},
        "saved_prefill_seconds": round(sum(_values(rows, "saved_prefill_seconds")), 3),
    }


def _values(rows: Sequence[Document], name: str) -> list[Any]:
    return [row[name] for row in rows]
