"""vLLM's names. Read off vLLM 0.32.0, ``vllm/v1/metrics/loggers.py`` and ``vllm/entrypoints/openai``."""

from gateway.values.engine import EngineFacts
from gateway.vendors.samples import process_started_at, read_samples

PREFIX = "vllm:"

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_CONFIG = "vllm:cache_config_info"


def parse_metrics(text: str) -> EngineFacts:
    """Facts of one scrape; with data parallelism the ranks are summed up."""
    samples = read_samples(text, {_RUNNING, _WAITING, _CONFIG})
    configs = [labels for labels, _ in samples.get(_CONFIG, [])]
    sizes = [int(labels["block_size"]) for labels in configs if labels.get("block_size", "").isdigit()]
    # One block of the pool is a placeholder that requests never get (vllm/v1/core/block_pool.py, null_block).
    blocks = [int(labels["num_gpu_blocks"]) - 1 for labels in configs if labels.get("num_gpu_blocks", "").isdigit()]
    caching = [labels["enable_prefix_caching"] == "True" for labels in configs if "enable_prefix_caching" in labels]
    return EngineFacts(
        block_size=sizes[0] if sizes else None,
        blocks=sum(blocks) if blocks else None,
        prefix_caching=all(caching) if caching else None,
        running=_total(samples.get(_RUNNING)),
        waiting=_total(samples.get(_WAITING)),
        started_at=process_started_at(text),
    )


def _total(samples: list[tuple[dict[str, str], float]] | None) -> int | None:
    return int(sum(value for _, value in samples)) if samples else None
