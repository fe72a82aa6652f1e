"""Sessions, as the kept requests know them: those that clients name, and conversations that were found by their prefix.

Both are identified by their tenant and an id. That of a conversation is the id of the first request known of it.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

from gateway.core.errors import BadRequest, NotFound
from gateway.stats.detail import iso_time
from gateway.stats.entries import RequestEntries, RequestEntry
from gateway.stats.query_arguments import read_limit

_REQUESTS_SHOWN = 100
_SHOWN_CHARS = 200


def sessions_shown(entries: RequestEntries, given: Mapping[str, str]) -> dict[str, object]:
    """The sessions of a tenant, or of all, those with the latest requests first; JSON-ready.

    Raises:
        BadRequest: The limit has an invalid value.
    """
    limit = read_limit(given)
    found = entries.sessions(given.get("tenant"))
    shown = [_summed(session, _read(entries, ids)) for (_, session), ids in islice(found.items(), limit)]
    return {"sessions": shown, "more": len(found) > limit}


def session_shown(entries: RequestEntries, given: Mapping[str, str]) -> dict[str, object]:
    """One session with its agents and the ids of its last requests, JSON-ready.

    Raises:
        NotFound: None of the kept requests belongs to it.
        BadRequest: Several tenants have such a session, and none of them is selected.
    """
    session = given.get("id", "")
    found = entries.sessions(given.get("tenant"), session)
    if not found:
        raise NotFound(
            f"There is no session {session[:_SHOWN_CHARS]!r} with a request that is kept. GET /admin/api/sessions lists"
            " them.",
            code="unknown_session",
        )
    if len(found) > 1:
        tenants = ", ".join(tenant for tenant, _ in islice(found, 10))
        message = f"Several tenants have a session of this id: select one of {tenants} by `tenant`."
        raise BadRequest(message, param="tenant", code="missing_required_parameter")
    ids = next(iter(found.values()))
    kept = _read(entries, ids)
    by_agent: dict[str, list[RequestEntry]] = {}
    for entry in kept:
        by_agent.setdefault(entry.record.agent, []).append(entry)
    agents = [_summed(session, own) for own in by_agent.values()]
    return _summed(session, kept) | {"agents": agents, "last_requests": ids[:_REQUESTS_SHOWN]}


def _read(entries: RequestEntries, ids: list[str]) -> list[RequestEntry]:
    return [entry for each in ids if (entry := entries.get(each)) is not None]


def _summed(session: str, kept: Sequence[RequestEntry]) -> dict[str, object]:
    """The sums of a session's requests, latest first; names are those of the latest."""
    last, first = kept[0].record, kept[-1].record
    prompt = sum(entry.explanation.prompt_tokens for entry in kept)
    hits = sum(entry.explanation.hits for entry in kept)
    return {
        "id": session,
        "tenant": last.tenant,
        "named": bool(last.session),
        "agent": last.agent,
        "parent_agent": last.parent_agent,
        "model": last.model,
        "source": last.source,
        "dialect": last.dialect,
        "replica": last.replica,
        "requests": len(kept),
        "prompt_tokens": prompt,
        "completion_tokens": sum(entry.record.completion_tokens or 0 for entry in kept),
        "hits": hits,
        "hit_rate": round(hits / prompt, 4) if prompt else None,
        "first_seen": first.at,
        "last_seen": last.at,
        "time": iso_time(last.at),
    }
