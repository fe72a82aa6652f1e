"""The engine's metrics, in the Prometheus text format."""

from gateway.simulator.cache import BlockCache
from gateway.simulator.config import EngineConfig
from gateway.simulator.scheduler import Scheduler

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(config: EngineConfig, cache: BlockCache, scheduler: Scheduler) -> str:
    """Everything that the engine counts, under vLLM's names."""
    totals = scheduler.totals
    label = f'model_name="{_escaped(config.model)}",engine="0"'
    info = (
        f'block_size="{config.block_size}",enable_prefix_caching="True",engine="0",num_gpu_blocks="{config.blocks}",'
        'prefix_caching_hash_algo="sha256"'
    )
    samples: list[tuple[str, str, str, str, float]] = [
        ("num_requests_running", "gauge", "Requests being computed.", label, scheduler.running),
        ("num_requests_waiting", "gauge", "Requests that wait to be computed.", label, scheduler.waiting),
        (
            "kv_cache_usage_perc",
            "gauge",
            "Share of the cache in use by requests, 1 is all of it.",
            label,
            1 - cache.free_blocks / cache.usable_blocks,
        ),
        ("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the cache.", label, totals.queries),
        ("prefix_cache_hits_total", "counter", "Prompt tokens found in the cache.", label, totals.hits),
        ("prompt_tokens_total", "counter", "Prompt tokens.", label, totals.prompt_tokens),
        ("generation_tokens_total", "counter", "Generated tokens.", label, totals.generated_tokens),
        (
            "request_success_total",
            "counter",
            "Requests that ended.",
            f'{label},finished_reason="stop"',
            totals.finished,
        ),
        (
            "request_success_total",
            "counter",
            "Requests that ended.",
            f'{label},finished_reason="abort"',
            totals.aborted,
        ),
        ("cache_config_info", "gauge", "Settings of the cache.", info, 1),
    ]
    lines: list[str] = []
    described: set[str] = set()
    for name, kind, text, labels, value in samples:
        if name not in described:
            described.add(name)
            lines += [f"# HELP vllm:{name} {text}", f"# TYPE vllm:{name} {kind}"]
        lines.append(f"vllm:{name}{{{labels}}} {float(value)}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
