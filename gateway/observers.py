"""Observers that pass on what they are told."""

import time
from collections.abc import Sequence

from gateway.epochs import PrefixSpaces
from gateway.values.explain import Happened, Past
from gateway.values.personal import Finding
from gateway.values.ports import Explains, PersonalDataObserver
from gateway.values.request import ChatRequest
from gateway.values.settlement import Refusal, Settlement
from gateway.values.space import SpaceEnd
from gateway.values.tenant import Tenant


class SpaceFigures:
    """An ``Observer``: what clients asked within each space."""

    def __init__(self, spaces: PrefixSpaces) -> None:
        self._spaces = spaces

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``."""
        if settlement.status == 200 and not settlement.warming:
            self._spaces.count(settlement)

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``."""


class LivesTold:
    """A ``SpaceObserver``: what was computed in a life that ended cannot be reached any more."""

    def __init__(self, explains: Explains) -> None:
        self._explains = explains

    def on_space_end(self, end: SpaceEnd) -> None:
        """See ``SpaceObserver``."""
        self._explains.happened(Happened(Past.LIFE_ENDED, time.time(), end.id, end.cause))


class FindingsTold:
    """Several ``PersonalDataObserver`` as one."""

    def __init__(self, observers: Sequence[PersonalDataObserver]) -> None:
        self._observers = observers

    def on_personal_data(self, request: ChatRequest, space: str, finding: Finding, *, shared: bool, new: bool) -> None:
        """See ``PersonalDataObserver``."""
        for observer in self._observers:
            observer.on_personal_data(request, space, finding, shared=shared, new=new)

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
        """See ``PersonalDataObserver``."""
        for observer in self._observers:
            observer.on_personal_data_skipped(tenant)
