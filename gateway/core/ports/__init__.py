"""Protocols between packages of the same layer, grouped by subject."""

from gateway.core.ports.canonicalization import (
    CanonicalRequest,
    ContextStore,
    LongTexts,
    ModelTexts,
)
from gateway.core.ports.engine_access import EngineCaller, EngineReader, EngineUnavailable
from gateway.core.ports.observers import (
    EventObserver,
    ExplainObserver,
    Observer,
    PersonalDataObserver,
    QueueObserver,
    SpaceObserver,
)
from gateway.core.ports.operations import WarmDesk
from gateway.core.ports.prefix_index import (
    BlockHasher,
    EventIndex,
    Holding,
    IndexState,
    Lease,
    PrefixIndex,
    PrefixUse,
    PromptObserver,
    SettledPrompt,
)
from gateway.core.ports.replication import Replicated, SharedRecords
from gateway.core.ports.request_path import Grant, Sink

__all__ = [
    "BlockHasher",
    "CanonicalRequest",
    "ContextStore",
    "EngineCaller",
    "EngineReader",
    "EngineUnavailable",
    "EventIndex",
    "EventObserver",
    "ExplainObserver",
    "Grant",
    "Holding",
    "IndexState",
    "Lease",
    "LongTexts",
    "ModelTexts",
    "Observer",
    "PersonalDataObserver",
    "PrefixIndex",
    "PrefixUse",
    "PromptObserver",
    "QueueObserver",
    "Replicated",
    "SettledPrompt",
    "SharedRecords",
    "Sink",
    "SpaceObserver",
    "WarmDesk",
]
