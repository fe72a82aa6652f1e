"""Entry points for all engines: metrics, usage, event sources and streams; the kind of engine; the flags it needs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from gateway.core.engine_facts import EngineFacts, EngineKind
from gateway.core.kv_events import EventSource
from gateway.core.outcome import Usage
from gateway.engines import sglang, vllm
from gateway.engines.samples import is_count, read_samples


@dataclass(frozen=True, slots=True)
class Advice:
    """Changes of the engine's command line, each a half sentence for the end of a message.

    Attributes:
        prefix_caching: Enables prefix caching.
        usage_details: Enables cached token counts in answers.
        metrics: Enables metrics: engine kind, load, cache size.
        events: Enables KV events and their replay. The replay port is far from the other because the data-parallel rank
            is added to both.
    """

    prefix_caching: str
    usage_details: str
    metrics: str
    events: str


_ADVICE = {
    EngineKind.VLLM: Advice(
        prefix_caching="start vLLM with --enable-prefix-caching",
        usage_details="start vLLM with --enable-prompt-tokens-details",
        metrics="start vLLM without --disable-log-stats",
        events="start vLLM with --kv-events-config "
        '\'{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557", '
        '"replay_endpoint": "tcp://*:5657"}\'',
    ),
    EngineKind.SGLANG: Advice(
        prefix_caching="start SGLang without --disable-radix-cache",
        usage_details="start SGLang with --enable-cache-report",
        metrics="start SGLang with --enable-metrics",
        events="start SGLang with --kv-events-config "
        '\'{"publisher": "zmq", "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657"}\'',
    ),
}


def advice(kind: EngineKind | None) -> Advice:
    """The advice for an engine; for an unknown one, that of all engines."""
    if kind is not None:
        return _ADVICE[kind]
    all_of_them = list(_ADVICE.values())
    return Advice(
        prefix_caching=" or ".join(each.prefix_caching for each in all_of_them),
        usage_details=" or ".join(each.usage_details for each in all_of_them),
        metrics=" or ".join(each.metrics for each in all_of_them),
        events=" or ".join(each.events for each in all_of_them),
    )


def payloads(stream: bytes) -> Iterator[bytes]:
    """The data of every event of an SSE stream, without the end mark."""
    for line in stream.splitlines():
        if line.startswith(b"data:"):
            payload = line[5:].strip()
            if payload != b"[DONE]":
                yield payload


_STARTED_AT = "process_start_time_seconds"
"""As every Prometheus client library exports it."""

_LATEST_START = 2**33
"""Unix time; in the year 2242."""

_METRICS = (*vllm.METRICS, *sglang.METRICS, _STARTED_AT)


def parse_metrics(text: str) -> EngineFacts:
    """Facts of an engine's ``/metrics``; all None for an unknown engine."""
    samples = read_samples(text, _METRICS)
    started = samples.get(_STARTED_AT)
    started_at = started[0].value if started and 0 <= started[0].value <= _LATEST_START else None
    if any(name in samples for name in vllm.METRICS):
        return vllm.read_facts(samples, started_at)
    if any(name in samples for name in sglang.METRICS):
        return sglang.read_facts(samples, started_at)
    return EngineFacts()


def event_sources(kind: EngineKind, document: Any, host: str) -> Sequence[EventSource]:
    """The KV event sources that an engine reports, by rank; empty if it publishes none.

    Args:
        kind: Kind of engine.
        document: The answer to ``GET /kv_event_sources`` of vLLM or ``GET /server_info`` of SGLang, parsed.
        host: Host name or address of the replica, without port.
    """
    match kind:
        case EngineKind.VLLM:
            return vllm.event_sources(document, host)
        case EngineKind.SGLANG:
            return sglang.event_sources(document, host)
        case _:
            assert_never(kind)


def parse_usage(usage: Any) -> Usage | None:
    """The ``usage`` object of a response; None if it is malformed or a count is out of range.

    ``prompt_tokens_details.cached_tokens`` is there only if vLLM runs with ``--enable-prompt-tokens-details``, SGLang
    with ``--enable-cache-report``.
    """
    if not isinstance(usage, Mapping):
        return None
    details = usage.get("prompt_tokens_details")
    prompt = usage.get("prompt_tokens")
    completion = usage.get("completion_tokens")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    if completion is None:
        completion = 0
    if not is_count(prompt) or not is_count(completion):
        return None
    if cached is not None and not (is_count(cached) and cached <= prompt):
        return None
    return Usage(prompt, completion, cached)
