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
    EventObserver,
    ExplainObserver,
    Observer,
    PersonalDataObserver,
    QueueObserver,
    SpaceObserver,
    WarmthObserver,
)
from gateway.core.ports.operations import Explains, WarmDesk
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
from gateway.core.ports.request_path import Grant, Sink, Trace

__all__ = [
    "BlockHasher",
    "CanonicalRequest",
    "Canonicalizes",
    "ContextStore",
    "EngineCaller",
    "EngineReader",
    "EngineUnavailable",
    "EventIndex",
    "EventObserver",
    "ExplainObserver",
    "Explains",
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
    "RateLearner",
    "Replicated",
    "Screen",
    "SettledPrompt",
    "SharedRecords",
    "Sink",
    "SpaceObserver",
    "Trace",
    "WarmDesk",
    "WarmthObserver",
]
