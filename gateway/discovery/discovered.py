"""Replicas as a discovery source reports them: settings from an address and a template; the delay of empty answers.

No I/O, no clock. A source that suddenly reports no ready replica is more often broken than right (a restarted name
server, a mistyped selector of a service), so ``EmptyGuard`` accepts such an answer only after it lasted for a while.
"""

import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pydantic import ValidationError

from gateway.config.discovery_settings import HOST, ZONE, TemplateSettings
from gateway.config.replica_settings import ReplicaSettings, TlsSettings


class SourceFailed(Exception):
    """A source does not answer, or its answer is malformed. The message is for the log."""


class Condition(StrEnum):
    """State of a replica as reported by its source."""

    READY = "ready"
    """It may get requests."""
    NOT_READY = "not_ready"
    """It gets no requests now, and may become ready again."""
    LEAVING = "leaving"
    """It shuts down."""


@dataclass(frozen=True, slots=True)
class DiscoveredReplica:
    """One discovered replica.

    Attributes:
        replica: Its settings, as in the configuration.
        condition: Its state.
    """

    replica: ReplicaSettings
    condition: Condition = Condition.READY


class ReplicaSource(Protocol):
    """A source of replicas."""

    def answers(self) -> AsyncGenerator[Sequence[DiscoveredReplica], None]:
        """All replicas, now and whenever they may have changed; continues until it is closed.

        Raises:
            SourceFailed: the source does not answer. The caller iterates again after a pause.
        """
        ...


def replica_at(
    template: TemplateSettings, *, scheme: str, host: str, port: int, name: str | None = None, zone: str = ""
) -> ReplicaSettings:
    """The replica at an address.

    Args:
        template: Settings common to all replicas of the source.
        scheme: ``http`` or ``https``.
        host: Its address or host name.
        port: Port of its engine.
        name: Its id; None for its address.
        zone: Its zone as reported by the platform; empty if unknown.

    Raises:
        SourceFailed: the source reported an invalid address.
    """
    host = f"[{host}]" if ":" in host else host
    values = {
        "url": f"{scheme}://{host}:{port}",
        "id": name,
        **({name: getattr(template, name) for name in TlsSettings.model_fields} if scheme == "https" else {}),
        "api_key": template.api_key,
        "region": zone if template.region == ZONE else template.region,
        "events": template.events.replace(HOST, host),
        "replay": None if template.replay is None else template.replay.replace(HOST, host),
    }
    try:
        return ReplicaSettings.model_validate(values)
    except ValidationError as invalid:
        problems = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in invalid.errors())
        raise SourceFailed(f"{host}:{port} cannot be used: {problems}") from None


class EmptyGuard:
    """The accepted answer of one source. All times are monotonic seconds.

    Args:
        empty_after_seconds: How long an answer without a ready replica has to last.
    """

    def __init__(self, empty_after_seconds: float) -> None:
        self._empty_after = empty_after_seconds
        self._believed: Sequence[DiscoveredReplica] = ()
        self._doubted: Sequence[DiscoveredReplica] = ()
        self._doubted_since = math.inf

    @property
    def due(self) -> float:
        """When the delayed answer will be accepted, if no other arrives; infinite if there is none."""
        return self._doubted_since + self._empty_after

    def answered(self, found: Sequence[DiscoveredReplica], now: float) -> Sequence[DiscoveredReplica]:
        """The source answered; returns the accepted answer."""
        if _any_ready(found) or not _any_ready(self._believed):
            self._believed = found
            self._doubted_since = math.inf
            return found
        if self._doubted_since == math.inf:
            self._doubted_since = now
        self._doubted = found
        return self.at(now)

    def at(self, now: float) -> Sequence[DiscoveredReplica]:
        """The accepted answer at a time, if no new one has arrived."""
        if now >= self.due:
            self._believed = self._doubted
            self._doubted_since = math.inf
        return self._believed

    def failed(self) -> None:
        """The source failed: drop the delayed answer."""
        self._doubted_since = math.inf


def _any_ready(found: Sequence[DiscoveredReplica]) -> bool:
    return any(each.condition is Condition.READY for each in found)
