"""The configuration of a simulated engine, and what a running one reports of it: its model and release."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from gateway.core.engine_facts import EngineKind
from gateway.simulator.event_encoder import EventEncoding, EventHashes
from gateway.simulator.faults import FaultSpec
from gateway.simulator.publisher import ZmqEndpoint

DEFAULT_CONTEXT = 32768
"""Default context limit in tokens, if the cache is large enough."""

_VERSIONS = {EngineKind.VLLM: "0.32.0", EngineKind.SGLANG: "0.5.23"}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One simulated engine. Raises ValueError, with one sentence, for values that contradict each other.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        flavor: Which engine it behaves as.
        model: Id under which the model is served.
        root: Where the model's files are, as the engine reports it. Empty: the same as ``model``.
        engine_version: The release that the engine reports. Empty: the simulated one.
        adapters: Names of the LoRA adapters that are served too.
        block_size: Tokens per cache block (SGLang: page).
        blocks: Cache blocks of each rank, the one the engine keeps for itself included: ``blocks - 1`` can be used.
        prefix_caching: Whether prefixes are reused.
        prefill_rate: Prompt tokens computed per second by each rank. ``inf``: prompts take no time.
        decode_ms: Milliseconds per generated token of one sequence.
        slots: Sequences computed at the same time by each rank.
        data_parallel_size: Ranks behind the one port, each with a cache of its own.
        max_model_len: Longest prompt plus answer in tokens. None: what the cache holds, at most ``DEFAULT_CONTEXT``.
        fault: Fault specs in force from the start, empty for none; see ``faults``.
        prompt_tokens_details: Whether usage reports the cached tokens. None: yes for vLLM, as with
            ``--enable-prompt-tokens-details``; no for SGLang, as without ``--enable-cache-report``.
        render: Whether vLLM's render endpoints exist; a real engine answers 403 unless it was started for it. Of
            SGLang, whether ``/tokenize`` takes chat requests, as from 0.5.12 on.
        events: Where to publish KV events, such as ``tcp://*:5557``; with ``*`` the engine listens at ``host``. Rank r
            takes the port + r, and a port of 0 a free one for each rank. Empty: no events.
        replay: Where past events can be asked for, in the same way. Empty: nowhere.
        replay_buffer: How many past batches of events are kept for that.
        event_topic: First frame of each message.
        event_encoding: The layout of events.
        event_hashes: How events name blocks.
        window_blocks: Blocks of a sliding window beside full attention (vLLM, hybrid models); 0 without one.
        record_requests: How many of the last POST requests to keep, raw.
        chat_template: Jinja file to use in place of the tokenizer's own template; None: that one.
        excludes_tools: Whether vLLM leaves tools out of a prompt whose ``tool_choice`` is ``none``.
        ignores_salt: Whether requests share their blocks regardless of ``cache_salt``, as in releases that do not know
            it.
        refuses_salt: Whether requests with a ``cache_salt`` are answered with 400.
        keep_alive_seconds: A stream gets a comment whenever no token has come for so long, as with vLLM's
            ``--sse-keep-alive-interval``. None: never.
        clock_seconds: How far its clock is ahead, as its Date headers show it. None: it sends no such header.
    """

    host: str = "127.0.0.1"
    port: int = 0
    flavor: EngineKind = EngineKind.VLLM
    model: str = "demo"
    root: str = ""
    engine_version: str = ""
    adapters: tuple[str, ...] = ()
    block_size: int = 16
    blocks: int = 4096
    prefix_caching: bool = True
    prefill_rate: float = 8000.0
    decode_ms: float = 10.0
    slots: int = 32
    data_parallel_size: int = 1
    max_model_len: int | None = None
    fault: str = ""
    prompt_tokens_details: bool | None = None
    render: bool = True
    events: str = ""
    replay: str = ""
    replay_buffer: int = 10_000
    event_topic: str = ""
    event_encoding: EventEncoding = EventEncoding.MAP
    event_hashes: EventHashes = EventHashes.INT
    window_blocks: int = 0
    record_requests: int = 0
    chat_template: Path | None = None
    excludes_tools: bool = False
    ignores_salt: bool = False
    refuses_salt: bool = False
    keep_alive_seconds: float | None = None
    clock_seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, not {self.port}")
        for name, kind in (("flavor", EngineKind), ("event_encoding", EventEncoding), ("event_hashes", EventHashes)):
            if getattr(self, name) not in list(kind):
                raise ValueError(f"{name} must be {' or '.join(kind)}, not {getattr(self, name)}")
        positive = ("block_size", "slots", "prefill_rate", "data_parallel_size", "replay_buffer", "keep_alive_seconds")
        for name in positive:
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        if self.blocks < 2:
            raise ValueError(f"blocks must be at least 2 (one is the engine's own), not {self.blocks}")
        if not self.decode_ms >= 0:
            raise ValueError(f"decode_ms must not be negative, not {self.decode_ms}")
        for name in ("record_requests", "window_blocks"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.chat_template is not None and not self.chat_template.is_file():
            raise ValueError(f"chat_template: no such file: {self.chat_template}")
        if self.max_model_len is not None and not 1 <= self.max_model_len <= self.capacity:
            raise ValueError(
                f"max_model_len must be between 1 and the {self.capacity} tokens that the cache holds, "
                f"not {self.max_model_len}"
            )
        names = [self.model, *self.adapters]
        if "" in names or len(set(names)) < len(names):
            raise ValueError(f"the model and its adapters need different names, not {', '.join(map(repr, names))}")
        self._check_events()
        self.parse_faults(self.fault)

    @property
    def capacity(self) -> int:
        """Tokens that the cache can hold."""
        return (self.blocks - 1) * self.block_size

    @property
    def context(self) -> int:
        """The context limit in force, in tokens."""
        return self.max_model_len if self.max_model_len is not None else min(DEFAULT_CONTEXT, self.capacity)

    @property
    def flavor_version(self) -> str:
        """The release whose behaviour is simulated."""
        return _VERSIONS[self.flavor]

    @property
    def tells_cached(self) -> bool:
        """Whether usage reports the cached tokens."""
        return self.flavor == EngineKind.VLLM if self.prompt_tokens_details is None else self.prompt_tokens_details

    def parse_faults(self, specs: str) -> list[FaultSpec]:
        """The faults of a spec. Raises ValueError for a bad one, and for one that does not apply to this engine."""
        parsed = FaultSpec.parse_all(specs)
        for spec in parsed:
            if spec.fault.of_events and not self.events:
                raise ValueError(f"fault {spec.fault} needs an engine that publishes events (--events)")
            if spec.rank is not None and spec.rank >= self.data_parallel_size:
                raise ValueError(
                    f"fault {spec.fault} is for rank {spec.rank}, the last rank is {self.data_parallel_size - 1}"
                )
        return parsed

    def _check_events(self) -> None:
        if self.replay and not self.events:
            raise ValueError("replay needs events, too")
        taken: dict[int, str] = {}
        for name, text in (("events", self.events), ("replay", self.replay)):
            if not text:
                continue
            endpoint = ZmqEndpoint.parse(text)
            if name == "events" and not endpoint.port and not endpoint.binds(self.flavor):
                raise ValueError(f"{name} needs a port: the engine connects to {text}, it does not listen there")
            for rank in range(self.data_parallel_size if endpoint.port else 0):
                port = endpoint.port + rank
                if port > 65535:
                    raise ValueError(f"{name} has no port left for rank {rank}: {text} gives it {port}")
                if port in taken:
                    raise ValueError(f"{name} and {taken[port]} both need port {port}; rank r takes the port + r")
                taken[port] = name


class Identity:
    """One engine's current identity.

    Attributes:
        root: Where the model's files are.
        version: Release of the engine.
        context: Context limit in tokens.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._take(config)

    def change(self, *, root: str = "", version: str = "", max_model_len: int | None = None) -> None:
        """Change it; empty or None keeps a value. Raises ValueError for a limit that the cache cannot hold."""
        before = self._config
        self._config = dataclasses.replace(
            before,
            root=root or before.root,
            engine_version=version or before.engine_version,
            max_model_len=before.max_model_len if max_model_len is None else max_model_len,
        )
        self._take(self._config)

    def _take(self, config: EngineConfig) -> None:
        self.root = config.root or config.model
        self.version = config.engine_version or config.flavor_version
        self.context = config.context
