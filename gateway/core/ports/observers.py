"""Observers: get events for metrics, logs, the audit log and statistics. None may raise or wait."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core.canonical import PersonalFinding, RuleMode
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.reasons import Reason
from gateway.core.request import ChatRequest
from gateway.core.settlement import Refusal, Settlement
from gateway.core.space import SpaceEnd
from gateway.core.tenant import Tenant


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An action, or a refused one. Never holds text of a prompt or a key.

    Attributes:
        event: Its name, such as ``spaces_reset`` or ``admin_refused``.
        by: Id of a key or of an admin token; empty for the gateway itself or an unknown client.
        tenant: Id of the tenant concerned; empty for none.
        details: Further fields, JSON-ready.
    """

    event: str
    by: str = ""
    tenant: str = ""
    details: Mapping[str, object] = field(default_factory=dict)


class EventObserver(Protocol):
    """Gets KV events. Must not raise and must not wait."""

    def on_kv_events(self, replica: ReplicaId, kind: str, count: int) -> None:
        """Events of a kind (``stored``, ``removed``, ``cleared``, ``unknown``) were received."""
        ...

    def on_kv_gap(self, replica: ReplicaId) -> None:
        """Batches of events are missing."""
        ...

    def on_kv_unmatched(self, replica: ReplicaId, kind: str, blocks: int) -> None:
        """Blocks of a kind (the fields of ``Unmatched``) matched nothing although their target's were all known."""
        ...


class Observer(Protocol):
    """Gets finished requests. Must not raise and must not wait."""

    def on_settled(self, settlement: Settlement) -> None:
        """A request is over."""
        ...

    def on_refused(self, refusal: Refusal) -> None:
        """A request was refused before the flow."""
        ...


class PersonalDataObserver(Protocol):
    """Gets findings of personal data. Must not raise and must not wait."""

    def on_personal_data(
        self, request: ChatRequest, space: str, finding: PersonalFinding, *, shared: bool, new: bool
    ) -> None:
        """A finding in one more request.

        Args:
            request: The request.
            space: Short name of its prefix space.
            finding: Kind and position.
            shared: Whether it is in a part that prompts of several conversations share.
            new: Whether it is reported for the first time, or was not shared before.
        """
        ...

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
        """A request was not searched completely, because of overload or its length."""
        ...

    def on_detector_failed(self, tenant: Tenant, *, refused: bool) -> None:
        """The operator's detector gave no valid answer for a request that is masked or blocked.

        Args:
            tenant: The request's tenant.
            refused: Whether the request is refused; otherwise it goes on with what the patterns found.
        """
        ...


class SpaceObserver(Protocol):
    """Gets epochs of prefix spaces that end. Must not raise and must not wait."""

    def on_space_end(self, end: SpaceEnd) -> None:
        """An epoch ended, by a reset or by its age."""
        ...


class QueueObserver(Protocol):
    """Gets the state of the queue. Must not raise and must not wait."""

    def on_queue_length(self, model: ModelId, requests: int) -> None:
        """The number of waiting requests changed."""
        ...

    def on_queued(self, model: ModelId, seconds: float) -> None:
        """A request left the queue after so many seconds."""
        ...

    def on_shed(self, model: ModelId, tenant: Tenant, reason: str) -> None:
        """A request was refused: ``full`` (too many waited) or ``too_long`` (it waited too long)."""
        ...


class ExplainObserver(Protocol):
    """Gets the results of explanations. Must not raise and must not wait."""

    def on_missed(self, model: str, tenant: str, reason: Reason, tokens: int) -> None:
        """Tokens were computed again; ``tenant`` is a label value."""
        ...

    def on_explain_skipped(self, count: int) -> None:
        """Requests were counted without a comparison of their text, because of overload."""
        ...

    def on_canonical(self, rule: str, mode: RuleMode, edits: int, saved: int, lost: int) -> None:
        """A rule changed prompts, or would have.

        Args:
            rule: As in ``RuleOutcome``.
            mode: As in ``RuleOutcome``.
            edits: Number of edits.
            saved: Prompt tokens that were, or would be, reused because of it.
            lost: Prompt tokens that were, or would be, computed again because of it.
        """
        ...
