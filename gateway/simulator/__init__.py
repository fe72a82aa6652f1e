"""A simulated engine: vLLM's HTTP API, prefix cache and timing, without a model.

``cache`` and ``answers`` are pure, ``scheduler`` turns work into time, ``app`` speaks HTTP, ``server`` owns the
sockets.
"""
