"""SGLang's names. Read off SGLang 0.5.23, ``sglang/srt/observability/metrics_collector.py``."""

from gateway.values.engine import EngineFacts
from gateway.vendors.samples import process_started_at, read_samples

PREFIX = "sglang:"

_RUNNING = "sglang:num_running_reqs"
_WAITING = "sglang:num_queue_reqs"
_PAGE = "sglang:page_size"
_TOKENS = "sglang:max_total_num_tokens"

_SMALLEST_BLOCK = 16
"""SGLang matches page by page, by default of one token. Coarser blocks lose at most 15 tokens of a prediction and cost
a sixteenth of the memory and time."""


def parse_metrics(text: str) -> EngineFacts:
    """Facts of one scrape."""
    samples = read_samples(text, {_RUNNING, _WAITING, _PAGE, _TOKENS})
    values = {name: int(sum(value for _, value in found)) for name, found in samples.items()}
    page = values.get(_PAGE)
    size = None if not page else page if page >= _SMALLEST_BLOCK else _SMALLEST_BLOCK // page * page
    tokens = values.get(_TOKENS)
    return EngineFacts(
        block_size=size,
        blocks=tokens // (size or _SMALLEST_BLOCK) if tokens else None,
        running=values.get(_RUNNING),
        waiting=values.get(_WAITING),
        started_at=process_started_at(text),
    )
