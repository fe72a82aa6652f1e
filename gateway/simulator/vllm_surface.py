"""vLLM's own endpoints, metrics and formats.

From vLLM 0.32.0, ``vllm/entrypoints`` and ``vllm/v1/metrics/loggers.py``.
"""

from collections.abc import Sequence as Several

from gateway.core.request import Endpoint
from gateway.simulator.call import Call, EngineError, Routes, error_type
from gateway.simulator.config import EngineConfig, Identity
from gateway.simulator.engine_scheduler import Sequence
from gateway.simulator.publisher import HIGH_WATER_MARK
from gateway.simulator.ranks import Rank, Ranks
from gateway.simulator.requests import RequestReader, vllm_salt
from gateway.simulator.surface import Exposition, Json
from gateway.simulator.wire import ids_of

_MAX_QUEUE_SIZE = 100_000


class VllmSurface:
    """vLLM's own endpoints and formats; see ``Surface``."""

    owner = "vllm"
    continuous_cached = False

    def __init__(self, config: EngineConfig, identity: Identity, ranks: Ranks, reader: RequestReader) -> None:
        self._config = config
        self._identity = identity
        self._ranks = ranks
        self._reader = reader

    def routes(self) -> Routes:
        """The endpoints that only this engine has."""
        return {
            ("GET", "/version"): self._version,
            ("GET", "/kv_event_sources"): self._sources,
            ("POST", f"{Endpoint.CHAT}/render"): self._render_chat,
            ("POST", f"{Endpoint.COMPLETIONS}/render"): self._render_completion,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/reset_prefix_cache"): self._reset,
        }

    def metrics(self) -> str:
        """All metrics under vLLM's names; the label ``engine`` is the rank."""
        exposition = Exposition()
        for rank in self._ranks.all:
            _add_rank(exposition, self._config, rank)
        if len(self._ranks.all) == 1:
            # With several ranks, and so several processes, Prometheus' client omits it.
            exposition.add(
                "process_start_time_seconds",
                "gauge",
                "Start time of the process since unix epoch in seconds.",
                self._ranks.started_at,
            )
        return exposition.text()

    def error(self, error: EngineError) -> Json:
        """The body of a refusal."""
        kind = error_type(error.status)
        return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.status}}

    def cached_tokens(self, sequences: Several[Sequence], n: int) -> int | None:
        """That of the last sequence only, even with several prompts."""
        del n
        return sequences[-1].cached_tokens if self._config.tells_cached else None

    @property
    def root(self) -> str:
        """The model's files."""
        return self._identity.root

    async def _version(self, call: Call) -> None:
        await call.reply.json({"version": self._identity.version})

    async def _sources(self, call: Call) -> None:
        sources = {
            str(rank.number): {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": str(rank.publisher.events),
                "replay_endpoint": None if rank.publisher.replay is None else str(rank.publisher.replay),
                "buffer_steps": self._config.replay_buffer,
                "hwm": HIGH_WATER_MARK,
                "max_queue_size": _MAX_QUEUE_SIZE,
                "topic": self._config.event_topic,
            }
            for rank in self._ranks.all
            if rank.publisher is not None
        }
        await call.reply.json(sources)

    async def _render_chat(self, call: Call) -> None:
        (prompt,) = self._rendered(Endpoint.CHAT, call)
        await call.reply.json({"request_id": call.request_id, "token_ids": ids_of(prompt)})

    async def _render_completion(self, call: Call) -> None:
        rendered = [
            {"request_id": f"{call.request_id}-{index}", "token_ids": ids_of(prompt)}
            for index, prompt in enumerate(self._rendered(Endpoint.COMPLETIONS, call))
        ]
        await call.reply.json(rendered if len(rendered) > 1 else rendered[0])

    def _rendered(self, endpoint: Endpoint, call: Call) -> tuple[bytes, ...]:
        if not self._config.render:
            raise EngineError(403, "The render endpoints need the engine to be started with --enable-scale-out.")
        fields = call.fields()
        vllm_salt(fields)
        return self._reader.prompts(endpoint, fields)

    async def _tokenize(self, call: Call) -> None:
        fields = call.fields()
        endpoint = Endpoint.CHAT if "messages" in fields else Endpoint.COMPLETIONS
        tokens = [token for prompt in self._reader.prompts(endpoint, fields) for token in ids_of(prompt)]
        body = {"count": len(tokens), "max_model_len": self._identity.context, "tokens": tokens, "token_strs": None}
        await call.reply.json(body)

    async def _reset(self, call: Call) -> None:
        # The engine always answers 200: a rank with running sequences keeps its cache.
        for rank in self._ranks.all:
            rank.cache.reset()
        await call.reply.text("", "text/plain; charset=utf-8")


def _add_rank(exposition: Exposition, config: EngineConfig, rank: Rank) -> None:
    totals = rank.scheduler.totals
    labels = {"model_name": config.model, "engine": rank.number}

    def add(name: str, kind: str, text: str, value: float, **more: object) -> None:
        exposition.add(f"vllm:{name}", kind, text, value, **labels, **more)

    add("num_requests_running", "gauge", "Requests being computed.", rank.scheduler.running)
    add("num_requests_waiting", "gauge", "Requests that wait to be computed.", rank.scheduler.waiting)
    use = 1 - rank.cache.free_blocks / rank.cache.usable_blocks
    add("kv_cache_usage_perc", "gauge", "Share of the cache in use by requests, 1 is all of it.", use)
    add("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the cache.", totals.queries)
    add("prefix_cache_hits_total", "counter", "Prompt tokens found in the cache.", totals.hits)
    add("prompt_tokens_total", "counter", "Prompt tokens.", totals.prompt_tokens)
    add("generation_tokens_total", "counter", "Generated tokens.", totals.generated_tokens)
    ended = "Requests that ended."
    add("request_success_total", "counter", ended, totals.finished, finished_reason="stop")
    add("request_success_total", "counter", ended, totals.aborted, finished_reason="abort")
    exposition.add(
        "vllm:cache_config_info",
        "gauge",
        "Settings of the cache.",
        1,
        block_size=config.block_size,
        enable_prefix_caching=config.prefix_caching,
        engine=rank.number,
        # The sum over all ranks, and over the groups of layers, which share them.
        num_gpu_blocks=config.blocks * config.data_parallel_size * (2 if config.window_blocks else 1),
        prefix_caching_hash_algo="sha256",
    )
