"""The last requests with their explanations: encoded, and bounded in number, age and bytes."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

from gateway.core.application import prompt_id
from gateway.core.canonical import Canonicalized
from gateway.core.errors import BadRequest, NotFound
from gateway.core.explanation import Explanation, RequestRecord
from gateway.core.reasons import Reason
from gateway.stats.label_limiter import StatsLimits
from gateway.stats.query_arguments import PARTS, Selection, read_limit, read_one_of

_OVERHEAD_BYTES = 1500
"""Memory of an entry besides its encoded form: its labels, and the objects that hold them."""

_Label = tuple[str, str]


class RequestEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request. Holds no text but the masked windows of the difference, and the token ids around it.

    Attributes:
        record: The request, without body, token ids and replies.
        explanation: Where its tokens went.
        gpus: GPUs per replica.
    """

    record: RequestRecord
    explanation: Explanation
    gpus: float


class _Explained(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A ``RequestEntry`` of which only the explanation is decoded, which is most of a summary's time."""

    record: msgspec.Raw
    explanation: Explanation


class _PackedEntry(msgspec.Struct, gc=False):
    """An encoded ``RequestEntry`` with what it is selected by; labels are values with the names of filters."""

    at: float
    session: str
    labels: frozenset[_Label]
    reasons: frozenset[Reason]
    packed: bytes

    @property
    def size(self) -> int:
        return len(self.packed) + _OVERHEAD_BYTES


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(RequestEntry).decode
_unpack_explained = msgspec.msgpack.Decoder(_Explained).decode


class RequestEntries:
    """Requests by tenant and id, since clients choose ids; of several with the same, the last one.

    Attributes:
        limits: The bounds.
    """

    def __init__(self, limits: StatsLimits) -> None:
        self.limits = limits
        self._kept: OrderedDict[tuple[str, str], _PackedEntry] = OrderedDict()
        self._bytes = 0

    def add(self, record: RequestRecord, explanation: Explanation, gpus: float) -> None:
        """Keep a request."""
        labels = _labels(
            record.model, record.tenant, record.source, record.where.template, record.where.prompt, record.prompt
        )
        reasons = _reasons(tuple([each.reason for each in explanation.missed if each.tokens]))
        packed = _pack(RequestEntry(without_text(record), explanation, gpus))
        kept = _PackedEntry(record.at, explanation.conversation or record.session, labels, reasons, packed)
        if (old := self._kept.pop(key := (record.tenant, record.request_id), None)) is not None:
            self._bytes -= old.size
        self._kept[key] = kept
        self._bytes += kept.size
        self.expire(record.at)

    def expire(self, now: float) -> None:
        """Drop entries older than the TTL, and the oldest ones beyond the bounds."""
        limits, kept = self.limits, self._kept
        while kept and (
            len(kept) > limits.requests
            or self._bytes > limits.request_bytes
            or next(iter(kept.values())).at <= now - limits.ttl_seconds
        ):
            self._bytes -= kept.popitem(last=False)[1].size

    def get(self, request_id: str, tenant: str | None = None) -> RequestEntry | None:
        """The last request with an id, of a tenant or of any; None if it is not kept."""
        keys: Iterable[tuple[str, str]] = reversed(self._kept) if tenant is None else [(tenant, request_id)]
        kept = next((self._kept.get(key) for key in keys if key[1] == request_id), None)
        return None if kept is None else _unpack(kept.packed)

    def newest(self, given: Mapping[str, str]) -> tuple[list[RequestEntry], bool]:
        """Requests that match all filters, newest first, and whether there are more.

        Args:
            given: Those of ``PARTS``, ``session``, ``reason`` and ``limit`` that are given.

        Raises:
            BadRequest: A filter has an invalid value.
        """
        limit, reason, session = read_limit(given), read_one_of(given, "reason", tuple(Reason)), given.get("session")
        wanted = {(name, given[name]) for name in PARTS if name in given}
        found = (
            kept.packed
            for kept in reversed(self._kept.values())
            if wanted <= kept.labels and session in {None, kept.session} and (reason is None or reason in kept.reasons)
        )
        return [_unpack(packed) for packed in islice(found, limit)], next(found, None) is not None

    def explanations(self, selection: Selection, since: float) -> Iterator[tuple[str, Explanation]]:
        """Tenants and explanations of the requests of a selection that ended at ``since`` or later."""
        wanted = {(part, value) for part in PARTS if (value := getattr(selection, part)) is not None}
        for (tenant, _), kept in self._kept.items():
            if kept.at >= since and wanted <= kept.labels:
                yield tenant, _unpack_explained(kept.packed).explanation

    def sessions_shown(self, given: Mapping[str, str]) -> dict[str, object]:
        """The sessions of a tenant, or of all, those with the latest requests first; JSON-ready.

        Raises:
            BadRequest: The limit has an invalid value.
        """
        limit, found = read_limit(given), self._sessions(given.get("tenant"))
        rows = [self._session_shown(*each, ids) for each, ids in islice(found.items(), limit)]
        return {"sessions": rows, "more": len(found) > limit}

    def session_shown(self, given: Mapping[str, str], *, end: bool) -> dict[str, Any]:
        """One session, JSON-ready. ``end``: its requests belong to no session from now on.

        Raises:
            NotFound: None of the kept requests belongs to it.
            BadRequest: Several tenants have such a session, and none of them is selected.
        """
        found = self._sessions(given.get("tenant"), given.get("id", ""))
        if not found:
            message = "No kept request belongs to it. GET /admin/api/sessions lists sessions."
            raise NotFound(message, code="unknown_session")
        if len(found) > 1:
            message = f"{len(found)} tenants have such a session: select one by `tenant`."
            raise BadRequest(message, param="tenant", code="missing_required_parameter")
        (((tenant, session), ids),) = found.items()
        shown = self._session_shown(tenant, session, ids)
        for each in ids if end else ():
            self._kept[tenant, each].session = ""
        return shown

    def _sessions(self, tenant: str | None, session: str | None = None) -> dict[tuple[str, str], list[str]]:
        """Request ids by tenant and id of their session, all latest first; unnamed sessions from two requests on."""
        found: dict[tuple[str, str], list[str]] = {}
        for (of, request_id), kept in reversed(self._kept.items()):
            if kept.session and tenant in {None, of} and session in {None, kept.session}:
                found.setdefault((of, kept.session), []).append(request_id)
        return {key: ids for key, ids in found.items() if ids != [key[1]]}

    def _session_shown(self, tenant: str, session: str, ids: list[str]) -> dict[str, Any]:
        """The sums of a session's requests, which are given latest first; names are those of the latest."""
        kept = [_unpack(self._kept[tenant, each].packed) for each in ids]
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


def without_text(record: RequestRecord) -> RequestRecord:
    """A request without body, token ids and replies; the same object if it has none."""
    canonical = Canonicalized(modes=record.canonical.modes, context_lost=record.canonical.context_lost)
    if not (record.body or record.parts or record.replies) and record.canonical == canonical:
        return record
    return msgspec.structs.replace(record, body=b"", parts=(), replies=(), canonical=canonical)


# Entries share these sets of up to a KiB: few differ from request to request.


@lru_cache(maxsize=256)
def _labels(*values: str) -> frozenset[_Label]:
    """Values with the names of filters."""
    model, tenant, source, template, of_space, in_totals = values
    labels = {("model", model), ("tenant", tenant), ("source", source), ("template", template)}
    return frozenset(labels | {("prompt", each) for each in (of_space, prompt_id(of_space), in_totals)})


@lru_cache(maxsize=256)
def _reasons(missed: tuple[Reason, ...]) -> frozenset[Reason]:
    return frozenset(missed)
