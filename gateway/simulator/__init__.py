"""A simulated engine: the HTTP API, prefix cache, KV events and timing of vLLM or SGLang, without a model.

In: an ``EngineConfig`` and HTTP requests. Out: answers, metrics and KV events. Start with ``simulated_engine``.
``engine_app`` handles HTTP, ``engine_scheduler`` timing, ``block_cache`` the cache, ``faults`` simulated failures.
"""
