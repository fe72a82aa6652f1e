"""What a simulated engine is told at its start."""

from dataclasses import dataclass

from gateway.simulator.faults import FaultSpec

DEFAULT_CONTEXT = 32768
"""Context limit in tokens where none is given and the cache is large enough."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One simulated engine. Raises ValueError with one clear sentence for values that cannot work together.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        model: Id under which the model is served.
        block_size: Tokens per cache block.
        blocks: Cache blocks, the one the engine keeps for itself included: ``blocks - 1`` can be used.
        prefill_rate: Prompt tokens computed per second. ``inf``: prompts cost no time.
        decode_ms: Milliseconds per generated token of one sequence.
        slots: Sequences computed at the same time.
        max_model_len: Longest prompt plus answer in tokens. None: what the cache holds, at most ``DEFAULT_CONTEXT``.
        fault: Fault spec in force from the start, empty for none; see ``faults``.
        prompt_tokens_details: Whether usage tells the cached tokens.
        render: Whether the render endpoints exist; a real engine answers 403 unless it was started for it.
        record_requests: How many of the last POST requests to keep, raw.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "demo"
    block_size: int = 16
    blocks: int = 4096
    prefill_rate: float = 8000.0
    decode_ms: float = 10.0
    slots: int = 32
    max_model_len: int | None = None
    fault: str = ""
    prompt_tokens_details: bool = True
    render: bool = True
    record_requests: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, not {self.port}")
        if not self.model:
            raise ValueError("model must not be empty")
        for name in ("block_size", "slots", "prefill_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.blocks < 2:
            raise ValueError(f"blocks must be at least 2 (one is the engine's own), not {self.blocks}")
        if not self.decode_ms >= 0:
            raise ValueError(f"decode_ms must not be negative, not {self.decode_ms}")
        if self.record_requests < 0:
            raise ValueError(f"record_requests must not be negative, not {self.record_requests}")
        if self.max_model_len is not None and not 1 <= self.max_model_len <= self.capacity:
            raise ValueError(
                f"max_model_len must be between 1 and the {self.capacity} tokens that the cache holds, "
                f"not {self.max_model_len}"
            )
        if self.fault:
            FaultSpec.parse(self.fault)

    @property
    def capacity(self) -> int:
        """Tokens that the cache can hold."""
        return (self.blocks - 1) * self.block_size

    @property
    def context(self) -> int:
        """The context limit in force, in tokens."""
        return self.max_model_len if self.max_model_len is not None else min(DEFAULT_CONTEXT, self.capacity)
