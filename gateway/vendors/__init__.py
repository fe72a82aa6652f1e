"""Facts about the engines: metric names, usage fields, event formats, addresses, flags.

A new version of an engine is the work of its own module, and of ``kv_events.py`` if the event format moved.
"""

from gateway.vendors.advice import Advice, advice
from gateway.vendors.cache_access import names_cached
from gateway.vendors.endpoints import offset_sources
from gateway.vendors.engine_access import acts_on_engine, names_adapter
from gateway.vendors.engines import event_sources, parse_metrics, parse_usage
from gateway.vendors.extras import media_extra
from gateway.vendors.kv_event_reader import BatchReader
from gateway.vendors.kv_events import BatchUnreadable, decode_batch
from gateway.vendors.limits import MAX_DOCUMENT_BYTES, is_count
from gateway.vendors.media import parse_media
from gateway.vendors.model_list import parse_models
from gateway.vendors.sglang import ServerFacts, parse_server_info
from gateway.vendors.stream import payloads

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "Advice",
    "BatchReader",
    "BatchUnreadable",
    "ServerFacts",
    "acts_on_engine",
    "advice",
    "decode_batch",
    "event_sources",
    "is_count",
    "media_extra",
    "names_adapter",
    "names_cached",
    "offset_sources",
    "parse_media",
    "parse_metrics",
    "parse_models",
    "parse_server_info",
    "parse_usage",
    "payloads",
]
