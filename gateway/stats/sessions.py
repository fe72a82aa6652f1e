"""Sessions, as the kept requests know them: those that clients name, and conversations found by their prefix."""

from collections.abc import Mapping
from itertools import islice

from gateway.core.errors import BadRequest, NotFound
from gateway.stats.entries import RequestEntries
from gateway.stats.query_arguments import read_limit


def sessions_shown(entries: RequestEntries, given: Mapping[str, str]) -> dict[str, object]:
    """The sessions of a tenant, or of all, those with the latest requests first; JSON-ready.

    Raises:
        BadRequest: The limit has an invalid value.
    """
    limit, found = read_limit(given), entries.sessions(given.get("tenant"))
    rows = [_summed(entries, *each, ids) for each, ids in islice(found.items(), limit)]
    return {"sessions": rows, "more": len(found) > limit}


def session_shown(entries: RequestEntries, given: Mapping[str, str]) -> dict[str, object]:
    """One session, JSON-ready.

    Raises:
        NotFound: None of the kept requests belongs to it.
        BadRequest: Several tenants have such a session, and none of them is selected.
    """
    session = given.get("id", "")
    found = entries.sessions(given.get("tenant"), session)
    if not found:
        raise NotFound("No kept request belongs to it. GET /admin/api/sessions lists sessions.", code="unknown_session")
    if len(found) > 1:
        message = f"{len(found)} tenants have such a session: select one by `tenant`."
        raise BadRequest(message, param="tenant", code="missing_required_parameter")
    return _summed(entries, *next(iter(found)), next(iter(found.values())))


def _summed(entries: RequestEntries, tenant: str, session: str, ids: list[str]) -> dict[str, object]:
    """The sums of a session's requests, which are given latest first; names are those of the latest."""
    kept = [entry for each in ids if (entry := entries.get(each, tenant)) is not None]
    last = kept[0].record
    prompt = sum(entry.explanation.prompt_tokens for entry in kept)
    hits = sum(entry.explanation.hits for entry in kept)
    return {
        "id": session,
        "tenant": tenant,
        "named": bool(last.session),
        "agents": sorted({entry.record.identity.agent for entry in kept} - {""}),
        "model": last.model,
        "source": last.source,
        "dialect": last.dialect,
        "replica": last.replica,
        "requests": len(kept),
        "prompt_tokens": prompt,
        "completion_tokens": sum(entry.record.completion_tokens or 0 for entry in kept),
        "hits": hits,
        "hit_rate": round(hits / prompt, 4) if prompt else None,
        "first_seen": kept[-1].record.at,
        "last_seen": last.at,
    }
