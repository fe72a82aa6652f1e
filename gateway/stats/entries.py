"""The last requests with their explanations: encoded, and bounded in number, age and bytes."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import lru_cache

import msgspec

from gateway.core.application import prompt_id
from gateway.core.canonical import Canonicalized
from gateway.core.explanation import Explanation, RequestRecord
from gateway.core.reasons import Reason
from gateway.stats.label_limiter import StatsLimits
from gateway.stats.query_arguments import Selection

_OVERHEAD_BYTES = 600
"""Memory of an entry besides its encoded form: the strings of the filters, and the objects that hold them."""


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


class _PackedEntry(msgspec.Struct, frozen=True, gc=False):
    at: float
    model: str
    tenant: str
    source: str
    template: str
    prompts: frozenset[str]
    session: str
    reasons: frozenset[Reason]
    packed: bytes


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(RequestEntry).decode
_unpack_explained = msgspec.msgpack.Decoder(_Explained).decode


class RequestEntries:
    """Requests by tenant and id, since clients choose ids; of several with the same, the last one.

    Args:
        limits: The bounds.
    """

    def __init__(self, limits: StatsLimits) -> None:
        self._limits = limits
        self._kept: OrderedDict[tuple[str, str], _PackedEntry] = OrderedDict()
        self._bytes = 0

    def configure(self, limits: StatsLimits, now: float) -> None:
        """Apply other bounds."""
        self._limits = limits
        self.expire(now)

    def add(self, record: RequestRecord, explanation: Explanation, gpus: float) -> None:
        """Keep a request."""
        bare = without_text(record)
        kept = _PackedEntry(
            at=record.at,
            model=record.model,
            tenant=record.tenant,
            source=record.source,
            template=record.where.template,
            prompts=_prompts(record.where.prompt, record.prompt),
            session=explanation.conversation or record.session,
            reasons=_reasons(tuple([each.reason for each in explanation.missed if each.tokens])),
            packed=_pack(RequestEntry(bare, explanation, gpus)),
        )
        if (old := self._kept.pop(key := (record.tenant, record.request_id), None)) is not None:
            self._bytes -= _size(old)
        self._kept[key] = kept
        self._bytes += _size(kept)
        self.expire(record.at)

    def expire(self, now: float) -> None:
        """Drop entries older than the TTL, and the oldest ones beyond the bounds."""
        limits = self._limits
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if (
                len(self._kept) <= limits.requests
                and self._bytes <= limits.request_bytes
                and oldest.at > now - limits.ttl_seconds
            ):
                break
            self._bytes -= _size(self._kept.popitem(last=False)[1])

    def get(self, request_id: str, tenant: str | None = None) -> RequestEntry | None:
        """The last request with an id, of a tenant or of any; None if it is not kept."""
        keys: Iterable[tuple[str, str]] = reversed(self._kept) if tenant is None else [(tenant, request_id)]
        kept = next((self._kept.get(key) for key in keys if key[1] == request_id), None)
        return None if kept is None else _unpack(kept.packed)

    def sessions(self, tenant: str | None = None, session: str | None = None) -> dict[tuple[str, str], list[str]]:
        """Request ids by tenant and id of their session, all latest first; unnamed sessions from two requests on."""
        found: dict[tuple[str, str], list[str]] = {}
        for (_, request_id), kept in reversed(self._kept.items()):
            if kept.session and tenant in {None, kept.tenant} and session in {None, kept.session}:
                found.setdefault((kept.tenant, kept.session), []).append(request_id)
        return {key: ids for key, ids in found.items() if ids != [key[1]]}

    def end_session(self, tenant: str, session: str) -> None:
        """Keep the requests of a session as such that belong to none."""
        for each in self.sessions(tenant, session).get((tenant, session), ()):
            self._kept[tenant, each] = msgspec.structs.replace(self._kept[tenant, each], session="")

    def explanations(self, selection: Selection, since: float) -> Iterator[tuple[str, Explanation]]:
        """Tenants and explanations of the requests of a selection that ended at ``since`` or later."""
        for kept in self._kept.values():
            labels = kept.model, kept.tenant, kept.source, kept.template
            if kept.at >= since and any(selection.takes(*labels, prompt) for prompt in kept.prompts):
                yield kept.tenant, _unpack_explained(kept.packed).explanation

    def newest(
        self,
        *,
        model: str | None = None,
        tenant: str | None = None,
        source: str | None = None,
        template: str | None = None,
        prompt: str | None = None,
        session: str | None = None,
        reason: Reason | None = None,
    ) -> Iterator[RequestEntry]:
        """Requests that match all filters, newest first; None matches any value."""
        for kept in reversed(self._kept.values()):
            if (
                model in {None, kept.model}
                and tenant in {None, kept.tenant}
                and source in {None, kept.source}
                and template in {None, kept.template}
                and (prompt is None or prompt in kept.prompts)
                and session in {None, kept.session}
                and (reason is None or reason in kept.reasons)
            ):
                yield _unpack(kept.packed)


def without_text(record: RequestRecord) -> RequestRecord:
    """A request without body, token ids and replies; the same object if it has none."""
    canonical = Canonicalized(modes=record.canonical.modes, context_lost=record.canonical.context_lost)
    if not (record.body or record.parts or record.replies) and record.canonical == canonical:
        return record
    return msgspec.structs.replace(record, body=b"", parts=(), replies=(), canonical=canonical)


# Entries share these sets of more than 200 bytes each: few differ from request to request.


@lru_cache(maxsize=256)
def _prompts(of_space: str, in_totals: str) -> frozenset[str]:
    return frozenset((of_space, prompt_id(of_space), in_totals))


@lru_cache(maxsize=256)
def _reasons(missed: tuple[Reason, ...]) -> frozenset[Reason]:
    return frozenset(missed)


def _size(kept: _PackedEntry) -> int:
    return len(kept.packed) + _OVERHEAD_BYTES
