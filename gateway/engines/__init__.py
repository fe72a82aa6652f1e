"""Facts about vLLM and SGLang: metric names, usage fields, event formats, addresses, flags. No I/O.

In: bytes and documents of an engine. Out: ``EngineFacts``, ``EventBatch``, ``Usage``, ``EventSource``. Start with
``engines``, then ``vllm`` and ``sglang``; a new engine version changes its own module, and ``kv_event_batches`` if the
event format changed.
"""

from gateway.core.engine_facts import Advice
from gateway.engines.endpoints import offset_sources
from gateway.engines.engine_fields import acts_on_engine, names_adapter, names_cached
from gateway.engines.engines import (
    ChatRules,
    advice,
    chat_rules,
    event_sources,
    event_sources_path,
    other_rules,
    parse_metrics,
    parse_usage,
    payloads,
)
from gateway.engines.extras import media_extra, parse_media
from gateway.engines.kv_event_batches import BatchUnreadable, decode_batch
from gateway.engines.kv_event_reader import BatchReader
from gateway.engines.model_list import parse_models
from gateway.engines.samples import MAX_DOCUMENT_BYTES, is_count
from gateway.engines.sglang import ServerFacts, parse_server_info
from gateway.engines.sglang_prompts import PROBE
from gateway.engines.vllm import external_cache

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "PROBE",
    "Advice",
    "BatchReader",
    "BatchUnreadable",
    "ChatRules",
    "ServerFacts",
    "acts_on_engine",
    "advice",
    "chat_rules",
    "decode_batch",
    "event_sources",
    "event_sources_path",
    "external_cache",
    "is_count",
    "media_extra",
    "names_adapter",
    "names_cached",
    "offset_sources",
    "other_rules",
    "parse_media",
    "parse_metrics",
    "parse_models",
    "parse_server_info",
    "parse_usage",
    "payloads",
]
