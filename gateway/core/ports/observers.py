"""Those who want to know what happened."""

from typing import Protocol

from gateway.core.audit_event import AuditEvent
from gateway.core.canonical import RuleMode
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.personal_findings import PersonalFinding
from gateway.core.reasons import Reason
from gateway.core.request import ChatRequest
from gateway.core.settlement import Refusal, Settlement
from gateway.core.space import SpaceEnd
from gateway.core.tenant import Tenant


class EventObserver(Protocol):
    """Somebody who counts KV events. Must not raise and must not wait."""

    def on_kv_events(self, replica: ReplicaId, kind: str, count: int) -> None:
        """Events of a kind (``stored``, ``removed``, ``cleared``, ``unknown``) came in."""
        ...

    def on_kv_gap(self, replica: ReplicaId) -> None:
        """Batches of events are missing."""
        ...


class Observer(Protocol):
    """Somebody who wants to know of finished requests. Must not raise and must not wait."""

    def on_settled(self, settlement: Settlement) -> None:
        """A request is over."""
        ...

    def on_refused(self, refusal: Refusal) -> None:
        """A request was answered before it got anywhere."""
        ...


class PersonalDataObserver(Protocol):
    """Somebody who wants to know of personal data found. Must not raise and must not wait."""

    def on_personal_data(
        self, request: ChatRequest, space: str, finding: PersonalFinding, *, shared: bool, new: bool
    ) -> None:
        """Something was found in one more request.

        Args:
            request: In which.
            space: Short name of its prefix space.
            finding: What and where.
            shared: Whether it stands in a part that prompts of several conversations have in common.
            new: Whether this was not yet so, or not known, the last time.
        """
        ...

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
        """A request was not searched, or not all of it: there was too much to do, or too much text."""
        ...


class SpaceObserver(Protocol):
    """Somebody who wants to know of lives of prefix spaces that end. Must not raise and must not wait."""

    def on_space_end(self, end: SpaceEnd) -> None:
        """A space was reset, or its time was over."""
        ...


class QueueObserver(Protocol):
    """Somebody who wants to know of requests that wait in the gateway. Must not raise and must not wait."""

    def on_queue_length(self, model: ModelId, requests: int) -> None:
        """So many wait now."""
        ...

    def on_queued(self, model: ModelId, seconds: float) -> None:
        """One has waited, whatever became of it."""
        ...

    def on_shed(self, model: ModelId, tenant: Tenant, reason: str) -> None:
        """One was refused: ``full`` (too many waited) or ``too_long`` (it waited too long)."""
        ...


class Auditor(Protocol):
    """Writes the audit log. Must not raise and must not wait."""

    def record(self, event: AuditEvent) -> None:
        """Write one event."""
        ...


class ExplainObserver(Protocol):
    """Somebody who counts what explanations say. Must not raise and must not wait."""

    def on_missed(self, model: str, tenant: str, reason: Reason, tokens: int) -> None:
        """Tokens were computed again; ``tenant`` is a label's value."""
        ...

    def on_explain_skipped(self, count: int) -> None:
        """Requests were counted without looking at their text, because the explanation was behind."""
        ...

    def on_canonical(self, rule: str, mode: RuleMode, edits: int, saved: int, lost: int) -> None:
        """A rule changed prompts, or would have.

        Args:
            rule: As in ``RuleOutcome``.
            mode: Likewise.
            edits: How many places.
            saved: Prompt tokens that were, or would be, reused by that.
            lost: Those that were, or would be, computed again by that.
        """
        ...
