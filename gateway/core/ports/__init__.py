"""Protocols between packages of the same layer, grouped by subject."""

from gateway.core.ports.canonicalization import (
    Canonicalizes,
    CanonicalRequest,
    ContextStore,
    LongTexts,
    ModelTexts,
    Screen,
)
from gateway.core.ports.engine_access import EngineCaller, EngineReader, EngineUnavailable, RateLearner
from gateway.core.ports.observers import (
    Auditor,
    EventObserver,
    ExplainObserver,
    Observer,
    PersonalDataObserver,
    QueueObserver,
    SpaceObserver,
)
from gateway.core.ports.operations import ExplainDesk, Explains, FleetDesk, SpaceDesk, WarmDesk
from gateway.core.ports.prefix_index import (
    BlockHasher,
    EventIndex,
    Holding,
    IndexState,
    Lease,
    PrefixIndex,
    PrefixUse,
    PrefixUses,
)
from gateway.core.ports.replication import Replicated, SharedRecords
from gateway.core.ports.request_path import Gate, Grant, Sink, Trace, Tracer

__all__ = [
    "Auditor",
    "BlockHasher",
    "CanonicalRequest",
    "Canonicalizes",
    "ContextStore",
    "EngineCaller",
    "EngineReader",
    "EngineUnavailable",
    "EventIndex",
    "EventObserver",
    "ExplainDesk",
    "ExplainObserver",
    "Explains",
    "FleetDesk",
    "Gate",
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
    "PrefixUses",
    "QueueObserver",
    "RateLearner",
    "Replicated",
    "Screen",
    "SharedRecords",
    "Sink",
    "SpaceDesk",
    "SpaceObserver",
    "Trace",
    "Tracer",
    "WarmDesk",
]
