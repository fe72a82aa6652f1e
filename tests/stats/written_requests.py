"""Requests and explanations made up for the journal, and a clock that is only a number."""

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson
from answered_requests import answered
from hypothesis import strategies as st

from gateway.core.explanation import (
    Attribution,
    Difference,
    Explanation,
    ReferenceShown,
    ReplicaPrefix,
    RequestRecord,
    SpaceKey,
)
from gateway.core.reasons import REASONS, Reason, Rung
from gateway.stats import Stats

NOON = 1_795_262_400.0
"""2026-11-21 12:00 UTC: the beginning of a bucket of every length."""

SECONDS_PER_TOKEN = 0.001
"""Prefill of one token at the made-up replicas."""


def finished(request_id: str = "r1", at: float = NOON, **fields: Any) -> RequestRecord:
    """A request answered as most are."""
    base = answered(
        request_id=request_id,
        at=at,
        model="m",
        where=SpaceKey(model="m", tokenizer="t", template="v3", owner="tenant:acme"),
        life="k3v9",
        body=b'{"messages": "the secret words of a prompt"}',
        parts=(b"secret-token-ids",),
        prompt_tokens=1000,
        predicted_tokens=640,
        cached_tokens=640,
        completion_tokens=20,
        replica="r0:8000",
        decision="warm",
        holders=(
            ReplicaPrefix("r0:8000", 0, 640, 0.01, 0.36, 1.09),
            ReplicaPrefix("r1:8000", 0, 0, 0.0, 1.0, 3.0),
            ReplicaPrefix("r2:8000", 0, 16, barred="unavailable"),
        ),
        streamed=True,
        ttft_seconds=0.1,
        seconds=1.5,
        prefill_seconds_per_token=SECONDS_PER_TOKEN,
    )
    return msgspec.structs.replace(base, **fields)


def explanation(hits: int = 640, missed: Mapping[Reason, int] | None = None, **fields: Any) -> Explanation:
    """Where the tokens went: ``hits``, and what was missed by reason."""
    missed = {Reason.NEW_CONTENT: 360} if missed is None else missed
    confirmed = fields.setdefault("hits_confirmed", True)
    rungs, length = [], hits
    for rung in Rung:
        length += sum(tokens for reason, tokens in missed.items() if REASONS[reason].rung is rung)
        rungs.append(length)
    return Explanation(
        prompt_tokens=length,
        hits=hits,
        rungs=tuple(rungs),
        missed=tuple(Attribution(reason, tokens, confirmed) for reason, tokens in missed.items()),
        **fields,
    )


def difference(reason: Reason = Reason.DYNAMIC_TIME, **fields: Any) -> Difference:
    """A first difference: a time in the second line of the system message."""
    base = Difference(
        reason=reason,
        detail="iso_datetime",
        path="messages[0].content",
        message=0,
        role="system",
        line=2,
        column=14,
        before="Xxxxxxx xxxx: ‹time›, xxx xxx",
        after="Xxxxxxx xxxx: ‹time›, xxx xxx",
        said="The time changed.",
    )
    return msgspec.structs.replace(base, **fields)


def reference(request_id: str = "r0", at: float = NOON - 12, **fields: Any) -> ReferenceShown:
    """What a request was compared with."""
    base = ReferenceShown(request_id, at, "web", "session", 650)
    return msgspec.structs.replace(base, **fields)


def ask(journal: Stats, question: str, now: float = NOON, **arguments: str) -> dict[str, Any]:
    """An answer of the journal."""
    answered = orjson.loads(journal.answer(question, arguments, now))
    assert isinstance(answered, dict)
    return answered


def asked(journal: Stats, question: str, now: float, arguments: Mapping[str, str]) -> dict[str, Any]:
    """As ``ask``, for arguments in a mapping."""
    return ask(journal, question, now, **arguments)


explanations = st.builds(
    lambda hits, missed, confirmed, turn, skipped: explanation(
        hits, missed, hits_confirmed=confirmed, turn=turn, was_skipped=skipped
    ),
    st.integers(0, 5000),
    st.dictionaries(st.sampled_from(list(Reason)), st.integers(0, 3000), max_size=8),
    st.booleans(),
    st.integers(0, 15),
    st.booleans(),
)
"""Explanations of all kinds. The identity holds in each, as it does in those of the ladder."""
