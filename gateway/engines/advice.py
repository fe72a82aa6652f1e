"""Engine flags that the gateway needs, as half sentences for messages."""

from dataclasses import dataclass

from gateway.core.engine_facts import EngineKind


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
