"""Metric names and documents of SGLang.

Read off SGLang 0.5.23: ``sglang/srt/observability/metrics_collector.py``, ``sglang/srt/disaggregation/kv_events.py``
and ``describe_kv_events_publisher`` in ``sglang/srt/runtime_context.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.core.engine_facts import Advice, EngineFacts, EngineKind, RankFacts
from gateway.core.kv_events import EventSource
from gateway.engines.endpoints import TcpAddress, parse_tcp, source_of_rank
from gateway.engines.samples import MAX_BLOCK_SIZE, MAX_RANKS, Samples, by_rank, share, whole

_RUNNING = "sglang:num_running_reqs"
_WAITING = "sglang:num_queue_reqs"
_PAGE = "sglang:page_size"
_TOKENS = "sglang:max_total_num_tokens"
_CACHE_USE = "sglang:token_usage"

METRICS = (_RUNNING, _WAITING, _PAGE, _TOKENS, _CACHE_USE)

EVENT_SOURCES_PATH = "/server_info"

ADVICE = Advice(
    prefix_caching="start SGLang without --disable-radix-cache",
    usage_details="start SGLang with --enable-cache-report",
    metrics="start SGLang with --enable-metrics",
    events="start SGLang with --kv-events-config "
    '\'{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}\'',
)

_RANK = "dp_rank"
"""Only there with data parallelism. The tensor-parallel ranks of one (``tp_rank``) report the same values, if any."""

_SMALLEST_BLOCK = 16
"""SGLang matches page by page, by default of one token. Coarser blocks lose at most 15 tokens of a prediction and cost
a sixteenth of the memory and time."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts of an SGLang replica from ``GET /server_info``; None for unknown ones.

    Attributes:
        prefix_caching: Whether the radix cache is on.
        usage_details: Whether answers say how many tokens were cached.
        version: The engine's release.
        root: The files it serves, and the version of their weights, which can be exchanged while it runs. Its
            ``/v1/models`` has the served name there.
        external: A cache beside the GPU's; empty for none.
        tokenizer: Folder or hub id of its tokenizer.
        template: File of the chat template that it uses in place of the tokenizer's own.
        probe: Token ids that its ``/tokenize`` makes of ``PROBE``, little-endian u32; from 0.5.12 on.
    """

    prefix_caching: bool | None = None
    usage_details: bool | None = None
    version: str | None = None
    root: str | None = None
    external: str = ""
    tokenizer: str | None = None
    template: str | None = None
    probe: bytes | None = None


def read_facts(samples: Samples, started_at: float | None) -> EngineFacts:
    """Facts of one scrape."""
    size = _block_size(whole(max(by_rank(samples.get(_PAGE), _RANK).values(), default=0)))
    tokens, running, waiting, use = (
        by_rank(samples.get(name), _RANK) for name in (_TOKENS, _RUNNING, _WAITING, _CACHE_USE)
    )
    return EngineFacts(
        kind=EngineKind.SGLANG,
        block_size=size,
        started_at=started_at,
        ranks=tuple(
            RankFacts(
                rank=rank,
                blocks=_blocks(whole(tokens.get(rank)), size),
                running=whole(running.get(rank)),
                waiting=whole(waiting.get(rank)),
                cache_use=share(use.get(rank)),
            )
            for rank in sorted(tokens.keys() | running.keys() | waiting.keys() | use.keys())
        ),
    )


def _blocks(tokens: int | None, size: int | None) -> int | None:
    return tokens // (size or _SMALLEST_BLOCK) if tokens else None


def _block_size(page: int | None) -> int | None:
    if not page or page > MAX_BLOCK_SIZE:
        return None
    return page if page >= _SMALLEST_BLOCK else _SMALLEST_BLOCK // page * page


def parse_server_info(document: Any) -> ServerFacts:
    """Facts of ``GET /server_info``: the engine's arguments are at its top level."""
    if not isinstance(document, Mapping):
        return ServerFacts()
    disabled, report = document.get("disable_radix_cache"), document.get("enable_cache_report")
    version, path, weights = (document.get(name) for name in ("version", "model_path", "weight_version"))
    flags = {"enable_lmcache": "LMCache", "enable_flexkv": "FlexKV", "enable_hierarchical_cache": "HiCache"}
    stores = [name for flag, name in flags.items() if document.get(flag) is True]
    return ServerFacts(
        external=_text(document.get("hicache_storage_backend")) or next(iter(stores), ""),
        prefix_caching=not disabled if isinstance(disabled, bool) else None,
        usage_details=report if isinstance(report, bool) else None,
        version=_text(version),
        tokenizer=_text(document.get("tokenizer_path")) or _text(path),
        template=_text(document.get("chat_template")),
        root=f"{path}@{weights}" if isinstance(path, str) and isinstance(weights, str) else _text(path),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def event_sources(document: Any, host: str) -> Sequence[EventSource]:
    """See ``engines.event_sources``.

    ``kv_events`` of ``/server_info`` is null when no events are published (or not over TCP). Versions that do not
    report their replay address there still report their ``--kv-events-config``.
    """
    published = document.get("kv_events") if isinstance(document, Mapping) else None
    if not isinstance(published, Mapping) or published.get("publisher", "zmq") != "zmq":
        return ()
    events = _address(published.get("endpoint_host"), published.get("endpoint_port_base"))
    if events is None:
        return ()
    replay = _address(published.get("replay_endpoint_host", "*"), published.get("replay_endpoint_port_base"))
    if replay is None:
        replay = _started_with(document.get("kv_events_config"))
    # ``ZmqEventPublisher._socket_setup``.
    listens = events.host in ("*", "0.0.0.0") or "::" in events.host  # noqa: S104
    ranks = min(_positive(published.get("dp_size")) or 1, MAX_RANKS)
    return tuple(
        source_of_rank(
            rank,
            events._replace(port=events.port + rank).written,
            replay._replace(port=replay.port + rank).written if replay else None,
            published.get("topic"),
            host,
            listens=listens,
        )
        for rank in range(ranks)
    )


def _address(host: Any, port: Any) -> TcpAddress | None:
    return parse_tcp(f"tcp://{host}:{port}") if isinstance(host, str) and _positive(port) else None


def _started_with(config: Any) -> TcpAddress | None:
    """The replay address of a ``--kv-events-config``."""
    try:
        parsed = orjson.loads(config) if isinstance(config, str) else None
    except orjson.JSONDecodeError:
        return None
    address = parsed.get("replay_endpoint") if isinstance(parsed, Mapping) else None
    return parse_tcp(address) if isinstance(address, str) else None


def _positive(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
