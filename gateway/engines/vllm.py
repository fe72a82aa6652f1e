"""Metric names and documents of vLLM.

Source: vLLM 0.32.0, ``vllm/v1/metrics/loggers.py`` and ``vllm/distributed/kv_events.py``."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.core.engine_facts import Advice, EngineFacts, EngineKind, RankFacts
from gateway.core.kv_events import EventSource
from gateway.engines.endpoints import is_chosen_by_system, source_of_rank
from gateway.engines.samples import (
    MAX_BLOCK_SIZE,
    Sample,
    Samples,
    by_rank,
    count_in,
    rank_number,
    rank_of,
    share,
    whole,
)

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_CACHE_USE = "vllm:kv_cache_usage_perc"
_CONFIG = "vllm:cache_config_info"

METRICS = (_RUNNING, _WAITING, _CACHE_USE, _CONFIG)

EVENT_SOURCES_PATH = "/kv_event_sources"

ADVICE = Advice(
    prefix_caching="start vLLM with --enable-prefix-caching",
    usage_details="start vLLM with --enable-prompt-tokens-details",
    metrics="start vLLM without --disable-log-stats",
    events="start vLLM with --kv-events-config "
    '\'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
    '"replay_endpoint": "tcp://*:5657"}\'',
)

_RANK = "engine"


def read_facts(samples: Samples, started_at: float | None) -> EngineFacts:
    """Facts of one scrape."""
    configs = samples.get(_CONFIG, [])
    sizes = [size for config in configs if (size := _count(config, "block_size")) and size <= MAX_BLOCK_SIZE]
    caching = [
        config.labels["enable_prefix_caching"] == "True"
        for config in configs
        if "enable_prefix_caching" in config.labels
    ]
    # Every rank reports the sum over all of them (vllm/v1/engine/core_client.py adds them up). One block of each pool
    # is a placeholder that requests never get (vllm/v1/core/block_pool.py, null_block).
    sums = {
        rank: count
        for config in configs
        if (count := _count(config, "num_gpu_blocks")) and (rank := rank_of(config, _RANK)) is not None
    }
    blocks = {rank: count // len(sums) - 1 for rank, count in sums.items() if count > len(sums)}
    running, waiting, use = (by_rank(samples.get(name), _RANK) for name in (_RUNNING, _WAITING, _CACHE_USE))
    return EngineFacts(
        kind=EngineKind.VLLM,
        block_size=sizes[0] if sizes else None,
        prefix_caching=all(caching) if caching else None,
        started_at=started_at,
        ranks=tuple(
            RankFacts(rank, blocks.get(rank), whole(running.get(rank)), whole(waiting.get(rank)), share(use.get(rank)))
            for rank in sorted(blocks.keys() | running.keys() | waiting.keys() | use.keys())
        ),
    )


def _count(config: Sample, label: str) -> int | None:
    return count_in(config.labels.get(label, ""))


def event_sources(document: Any, host: str) -> Sequence[EventSource]:
    """See ``engines.event_sources``.

    ``/kv_event_sources`` is an object of ``KVEventsConfig`` by rank (``vllm/config/kv_events.py``), with the ports
    already counted up; it is empty when no events are published.
    """
    if not isinstance(document, Mapping):
        return ()
    sources = [
        _source(rank, config, host)
        for name, config in document.items()
        if name.isascii() and name.isdigit() and (rank := rank_number(name)) is not None and _publishes(config)
    ]
    return tuple(sorted(sources, key=lambda source: source.rank))


def _publishes(config: Any) -> bool:
    return (
        isinstance(config, Mapping)
        and config.get("enable_kv_cache_events", True) is not False
        and config.get("publisher", "zmq") == "zmq"
        and isinstance(config.get("endpoint"), str)
    )


def _source(rank: int, config: Mapping[str, Any], host: str) -> EventSource:
    address = config["endpoint"]
    # ``ZmqEventPublisher._is_bind_endpoint``. For tcp://*:0 the engine binds an address of its machine instead, at a
    # port that the system chose, and reports both.
    listens = "*" in address or "::" in address or is_chosen_by_system(address)
    return source_of_rank(rank, address, config.get("replay_endpoint"), config.get("topic"), host, listens=listens)
