"""SGLang's own endpoints, metrics and formats.

From the source of SGLang 0.5.23 and of the months around it: ``sglang/srt/entrypoints``,
``sglang/srt/observability/metrics_collector.py``, ``describe_kv_events_publisher``.
"""

from collections.abc import Sequence as Several
from datetime import UTC, datetime

from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.simulator.call import Call, EngineError, Routes, error_type
from gateway.simulator.config import EngineConfig, Identity
from gateway.simulator.engine_scheduler import Sequence
from gateway.simulator.ranks import Rank, Ranks
from gateway.simulator.requests import RequestReader
from gateway.simulator.surface import Exposition, Json
from gateway.simulator.wire import ids_of


class SglangSurface:
    """SGLang's own endpoints and formats; see ``Surface``."""

    owner = "sglang"
    continuous_cached = True

    def __init__(self, config: EngineConfig, identity: Identity, ranks: Ranks, reader: RequestReader) -> None:
        self._config = config
        self._identity = identity
        self._ranks = ranks
        self._reader = reader

    def routes(self) -> Routes:
        """The endpoints that only this engine has."""
        return {
            ("GET", "/server_info"): self._server_info,
            ("GET", "/v1/loads"): self._loads,
            ("GET", "/flush_cache"): self._flush,
            ("POST", "/flush_cache"): self._flush,
            ("POST", "/v1/tokenize"): self._tokenize,
            ("POST", "/tokenize"): self._tokenize,
        }

    def metrics(self) -> str:
        """All metrics under SGLang's names. The label of the rank is there only with several ranks.

        The engine collects from several processes, so it reports no start time.
        """
        exposition = Exposition()
        for rank in self._ranks.all:
            self._add_rank(exposition, rank)
        totals = [rank.scheduler.totals for rank in self._ranks.all]
        name = self._config.model

        def count(metric: str, text: str, value: float, **more: object) -> None:
            exposition.add(f"sglang:{metric}", "counter", text, value, model_name=name, **more)

        count("prompt_tokens_total", "Prompt tokens.", sum(total.prompt_tokens for total in totals))
        count("generation_tokens_total", "Generated tokens.", sum(total.generated_tokens for total in totals))
        hits = sum(total.hits for total in totals)
        count("cached_tokens_total", "Prompt tokens found in the cache.", hits, cache_source="device")
        count("num_requests_total", "Requests that ended.", sum(total.finished for total in totals))
        count("num_aborted_requests_total", "Requests that were aborted.", sum(total.aborted for total in totals))
        return exposition.text()

    def error(self, error: EngineError) -> Json:
        """The body of a refusal."""
        return {
            "object": "error",
            "message": error.message,
            "type": error_type(error.status),
            "param": error.param,
            "code": error.status,
        }

    def cached_tokens(self, sequences: Several[Sequence], n: int) -> int | None:
        """Of all prompts together. SGLang omits zero, which looks as if it did not report at all."""
        return (
            (sum(sequence.cached_tokens for sequence in sequences[::n]) or None) if self._config.tells_cached else None
        )

    def _add_rank(self, exposition: Exposition, rank: Rank) -> None:
        config = self._config
        totals = rank.scheduler.totals
        labels: Json = {"model_name": config.model, "engine_type": "unified"}
        labels |= {"tp_rank": 0, "pp_rank": 0, "moe_ep_rank": 0}
        if config.data_parallel_size > 1:
            labels["dp_rank"] = rank.number

        def gauge(name: str, text: str, value: float) -> None:
            exposition.add(f"sglang:{name}", "gauge", text, value, **labels)

        gauge("num_running_reqs", "Requests being computed.", rank.scheduler.running)
        gauge("num_queue_reqs", "Requests that wait to be computed.", rank.scheduler.waiting)
        gauge("num_used_tokens", "Tokens in use by requests.", self._used_tokens(rank))
        gauge("token_usage", "Share of the cache in use by requests, 1 is all of it.", self._token_usage(rank))
        gauge("cache_hit_rate", "Share of the prompt tokens found in the cache.", totals.hits / max(totals.queries, 1))
        gauge("max_total_num_tokens", "Tokens that the cache holds.", config.capacity)
        gauge("page_size", "Tokens per page.", config.block_size)
        gauge("num_pages", "Pages of the cache.", rank.cache.usable_blocks)
        gauge("context_len", "Context limit in tokens.", self._identity.context)

    def _used_tokens(self, rank: Rank) -> int:
        return (rank.cache.usable_blocks - rank.cache.free_blocks) * self._config.block_size

    def _token_usage(self, rank: Rank) -> float:
        return 1 - rank.cache.free_blocks / rank.cache.usable_blocks

    @property
    def root(self) -> str:
        """The name under which the model is served: only ``/server_info`` has the files."""
        return self._config.model

    async def _server_info(self, call: Call) -> None:
        config = self._config
        info = {
            "model_path": self._identity.root,
            "served_model_name": config.model,
            "page_size": config.block_size,
            "dp_size": config.data_parallel_size,
            "context_length": self._identity.context,
            "disable_radix_cache": not config.prefix_caching,
            "enable_cache_report": config.tells_cached,
            "max_total_num_tokens": config.capacity,
            "max_running_requests": config.slots,
            "version": self._identity.version,
            "kv_events": self._kv_events(),
        }
        await call.reply.json(info)

    def _kv_events(self) -> Json | None:
        publisher = self._ranks.all[0].publisher
        if publisher is None:
            return None
        facts: Json = {
            "publisher": "zmq",
            "endpoint_host": publisher.events.host,
            "endpoint_port_base": publisher.events.port,
            "topic": self._config.event_topic,
            "block_size": self._config.block_size,
            "dp_size": self._config.data_parallel_size,
        }
        if publisher.replay is not None:
            facts["replay_endpoint_port_base"] = publisher.replay.port
        return facts

    async def _loads(self, call: Call) -> None:
        asked = call.parameter("dp_rank")
        loads = [self._load(rank) for rank in self._ranks.all if asked in {None, str(rank.number)}]
        running = sum(load["num_running_reqs"] for load in loads)
        waiting = sum(load["num_waiting_reqs"] for load in loads)
        body = {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": self._identity.version,
            "dp_rank_count": len(loads),
            "loads": loads,
            "aggregate": {
                "total_running_reqs": running,
                "total_waiting_reqs": waiting,
                "total_reqs": running + waiting,
                "avg_token_usage": sum(load["token_usage"] for load in loads) / max(len(loads), 1),
            },
        }
        await call.reply.json(body)

    def _load(self, rank: Rank) -> Json:
        used = self._used_tokens(rank)
        return {
            "dp_rank": rank.number,
            "num_running_reqs": rank.scheduler.running,
            "num_waiting_reqs": rank.scheduler.waiting,
            "num_used_tokens": used,
            "num_total_tokens": used + rank.scheduler.waiting_tokens,
            "max_total_num_tokens": self._config.capacity,
            "token_usage": self._token_usage(rank),
            "max_running_requests": self._config.slots,
            "num_total_reqs": rank.scheduler.running + rank.scheduler.waiting,
        }

    async def _flush(self, call: Call) -> None:
        if not self._ranks.idle:
            await call.reply.text("The cache is not flushed while requests run or wait.\n", "text/plain", 400)
            return
        for rank in self._ranks.all:
            rank.cache.reset()
        await call.reply.text("Cache flushed.\n", "text/plain")

    async def _tokenize(self, call: Call) -> None:
        fields = call.fields()
        endpoint = Endpoint.CHAT if "messages" in fields and self._config.render else Endpoint.COMPLETIONS
        prompts = self._reader.prompts(endpoint, fields)
        counts = [len(prompt) // TOKEN_BYTES for prompt in prompts]
        several = isinstance(fields.get("prompt"), list)
        body = {
            "tokens": [ids_of(prompt) for prompt in prompts] if several else ids_of(prompts[0]),
            "count": counts if several else counts[0],
            "max_model_len": self._identity.context,
        }
        await call.reply.json(body)
