"""Observers that pass calls on to other observers or components."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import structlog

from gateway.core.canonical import PersonalFinding
from gateway.core.explanation import CacheEvent, CacheHistory
from gateway.core.ports import Observer, PersonalDataObserver, PromptObserver, SettledPrompt, SpaceObserver
from gateway.core.request import ChatRequest
from gateway.core.settlement import Refusal, Settlement
from gateway.core.space import SpaceEnd
from gateway.core.tenant import Tenant
from gateway.explain.worker import ExplainClient

_T = TypeVar("_T")

_log = structlog.get_logger("gateway.observer_adapters")


def _notify(observers: Iterable[_T], call: Callable[[_T], None], **where: str) -> None:
    """Call every observer. One that fails is logged; the others still do their work, and the request goes on."""
    for observer in observers:
        try:
            call(observer)
        except Exception:  # noqa: BLE001 - an observer only counts and reports
            _log.exception("observer_failed", observer=type(observer).__name__, **where)


class AllObservers:
    """Several ``Observer`` as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def on_settled(self, settlement: Settlement) -> None:
        """See ``Observer``."""
        for observer in self._observers:
            try:
                observer.on_settled(settlement)
            except Exception:  # noqa: BLE001 - as in ``_notify``, which costs two calls more for each observer
                _log.exception("observer_failed", observer=type(observer).__name__, request_id=settlement.request_id)

    def on_refused(self, refusal: Refusal) -> None:
        """See ``Observer``."""
        _notify(self._observers, lambda each: each.on_refused(refusal), request_id=refusal.request_id)


class AllSpaceObservers:
    """Several ``SpaceObserver`` as one."""

    def __init__(self, observers: Sequence[SpaceObserver]) -> None:
        self._observers = observers

    def on_space_end(self, end: SpaceEnd) -> None:
        """See ``SpaceObserver``."""
        _notify(self._observers, lambda each: each.on_space_end(end), space=end.id)


class EpochEndObservers:
    """A ``SpaceObserver`` that reports ended epochs to the explain worker: their blocks are unreachable."""

    def __init__(self, explains: ExplainClient) -> None:
        self._explains = explains

    def on_space_end(self, end: SpaceEnd) -> None:
        """See ``SpaceObserver``."""
        self._explains.record_event(CacheEvent(CacheHistory.LIFE_ENDED, time.time(), end.id, end.cause))


class PromptObservers:
    """Several ``PromptObserver`` as one."""

    def __init__(self, observers: Sequence[PromptObserver]) -> None:
        self._observers = observers

    @property
    def awaits_clients(self) -> bool:
        """See ``PromptObserver``."""
        for observer in self._observers:  # noqa: SIM110 - asked for every request, and a generator takes as long again
            if observer.awaits_clients:
                return True
        return False

    def on_prompt(self, prompt: SettledPrompt) -> None:
        """See ``PromptObserver``."""
        _notify(self._observers, lambda each: each.on_prompt(prompt), request_id=prompt.request.request_id)


class PersonalDataObservers:
    """Several ``PersonalDataObserver`` as one."""

    def __init__(self, observers: Sequence[PersonalDataObserver]) -> None:
        self._observers = observers

    def on_personal_data(
        self, request: ChatRequest, space: str, finding: PersonalFinding, *, shared: bool, new: bool
    ) -> None:
        """See ``PersonalDataObserver``."""
        _notify(
            self._observers,
            lambda each: each.on_personal_data(request, space, finding, shared=shared, new=new),
            request_id=request.request_id,
        )

    def on_personal_data_skipped(self, tenant: Tenant) -> None:
        """See ``PersonalDataObserver``."""
        _notify(self._observers, lambda each: each.on_personal_data_skipped(tenant))

    def on_detector_failed(self, tenant: Tenant, *, refused: bool) -> None:
        """See ``PersonalDataObserver``."""
        _notify(self._observers, lambda each: each.on_detector_failed(tenant, refused=refused))
