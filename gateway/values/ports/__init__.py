"""The protocols through which rooms see each other, by what they are about."""

from gateway.values.ports.canon import Canonicalizes, CanonicalRequest, ContextStore, LongTexts, ModelTexts, Screen
from gateway.values.ports.desks import ExplainDesk, Explains, FleetDesk, SpaceDesk, WarmDesk
from gateway.values.ports.engines import EngineCaller, EngineReader, EngineUnavailable, RateLearner
from gateway.values.ports.index import (
    BlockHasher,
    EventIndex,
    Holding,
    IndexState,
    Lease,
    PrefixIndex,
    PrefixUse,
    PrefixUses,
)
from gateway.values.ports.observers import (
    Auditor,
    EventObserver,
    ExplainObserver,
    Observer,
    PersonalDataObserver,
    QueueObserver,
    SpaceObserver,
)
from gateway.values.ports.requests import Gate, Grant, Sink, Trace, Tracer
from gateway.values.ports.sharing import Records, Shared

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
    "Records",
    "Screen",
    "Shared",
    "Sink",
    "SpaceDesk",
    "SpaceObserver",
    "Trace",
    "Tracer",
    "WarmDesk",
]
