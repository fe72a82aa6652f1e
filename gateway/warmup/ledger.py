"""What warm-up costs (prefill tokens and GPU seconds) and what it saves (the first use of each block it computed)."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from gateway.core.block_chain import BlockChain
from gateway.core.ids import BlockHash, ModelId, RequestId, Target
from gateway.core.ports import SettledPrompt
from gateway.telemetry import MetricsObserver

_FILLED_PER_TARGET = 64
"""Warmed prefixes of a target whose first use is awaited. Every client's request is compared with them."""

_COMPUTED_KEPT = 1024
"""Warm-up requests whose computed tokens are kept until their sender asks for them."""


class WarmCause(StrEnum):
    """Why prefixes are sent."""

    ORDER = "order"
    """An operator asked for it."""
    JOINED = "joined"
    """A replica joined, or its model changed; it is held back from clients' requests meanwhile."""
    PROMPT_VERSION = "prompt_version"
    """Another version of a registered prompt became the current one."""
    RESET = "reset"
    """Their prefix space was reset."""
    EXPIRY = "expiry"
    """Their prefix space expired."""
    RESTART = "restart"
    """A replica came up with an empty cache: its hottest prefixes, after the declared ones."""
    IDLE = "idle"
    """Their prefix space is about to expire because it is not used."""
    SCHEDULE = "schedule"
    """It was time."""


@dataclass(slots=True)
class WarmTotals:
    """Totals since the start.

    Attributes:
        requests: Requests that a replica has computed.
        prefill_tokens: Prompt tokens that they computed.
        gpu_seconds: GPU seconds that these took, by the replica's learned rate.
        saved_tokens: Prompt tokens of clients' requests that were cached by warm-up: of each computed block its first
            use. Later uses would have been hits without warm-up, too.
        saved_gpu_seconds: GPU seconds that computing these would have taken.
    """

    requests: int = 0
    prefill_tokens: int = 0
    gpu_seconds: float = 0.0
    saved_tokens: int = 0
    saved_gpu_seconds: float = 0.0

    def shown(self) -> dict[str, object]:
        """JSON-ready."""
        return {each.name: round(getattr(self, each.name), 4) for each in fields(self)}


class _Filled:
    """Blocks ``start`` to ``end`` of a chain, computed by a warm-up and not yet used by a client."""

    __slots__ = ("cause", "chain", "end", "start")

    def __init__(self, cause: WarmCause, chain: BlockChain, start: int) -> None:
        self.cause = cause
        self.chain = chain
        self.start = start
        self.end = len(chain.hashes)


class WarmLedger:
    """A ``PromptObserver`` that counts costs and savings of warm-up.

    Args:
        gpus: GPUs of one replica of a model.
        observer: Counts them, too.

    Attributes:
        awaits_clients: See ``PromptObserver``: while the first use of a warmed prefix is awaited.
    """

    def __init__(self, gpus: Callable[[ModelId], float], observer: MetricsObserver) -> None:
        self.observer = observer
        self.awaits_clients = False
        self._gpus = gpus
        self._causes: dict[RequestId, WarmCause] = {}
        self._computed: dict[RequestId, int] = {}
        self._filled: dict[Target, deque[_Filled]] = {}
        self._totals: dict[WarmCause, WarmTotals] = {cause: WarmTotals() for cause in WarmCause}

    @property
    def totals(self) -> Mapping[WarmCause, WarmTotals]:
        """Totals by cause."""
        return self._totals

    def begin(self, request_id: RequestId, cause: WarmCause) -> None:
        """A warm-up request is about to be sent; ``end`` has to follow."""
        self._causes[request_id] = cause

    def end(self, request_id: RequestId) -> int:
        """A warm-up request is over: the prompt tokens that it computed; 0 if no replica did."""
        self._causes.pop(request_id, None)
        return self._computed.pop(request_id, 0)

    def on_prompt(self, prompt: SettledPrompt) -> None:
        """See ``PromptObserver``."""
        if prompt.request.warmup_target is not None:
            self._fill(prompt)
        elif (filled := self._filled.get(prompt.target)) is not None:
            self._use(prompt, filled)

    def _fill(self, prompt: SettledPrompt) -> None:
        request = prompt.request
        cause = self._causes.get(request.request_id, WarmCause.ORDER)
        tokens = max(prompt.chain.tokens - prompt.reused_tokens, 0)
        if request.request_id in self._causes and len(self._computed) < _COMPUTED_KEPT:
            self._computed[request.request_id] = tokens
        gpu_seconds = tokens * prompt.prefill_seconds_per_token * self._gpus(request.model)
        totals = self._totals[cause]
        totals.requests += 1
        totals.prefill_tokens += tokens
        totals.gpu_seconds += gpu_seconds
        self.observer.on_warmed(request.model, cause, tokens, gpu_seconds)
        start = prompt.reused_tokens // prompt.chain.block_size
        if start < len(prompt.chain.hashes):
            filled = self._filled.setdefault(prompt.target, deque(maxlen=_FILLED_PER_TARGET))
            filled.append(_Filled(cause, prompt.chain, start))
            self.awaits_clients = True

    def _use(self, prompt: SettledPrompt, filled: deque[_Filled]) -> None:
        """Count the blocks that this request is the first to use, and forget those that it has computed again."""
        hashes = prompt.chain.hashes
        reused = prompt.reused_tokens // prompt.chain.block_size
        done: list[_Filled] = []
        for each in filled:
            ours = each.chain
            if each.start >= len(hashes) or hashes[each.start] != ours.hashes[each.start]:
                continue
            shared = _shared(hashes, each)
            used = min(reused, shared)
            if used > each.start:
                self._save(prompt, each.cause, (used - each.start) * ours.block_size)
            # What the request had to compute although it was warmed was evicted; from now on it is the client's.
            each.start = shared
            if each.start >= each.end:
                done.append(each)
        for each in done:
            filled.remove(each)
        if not filled:
            del self._filled[prompt.target]
            self.awaits_clients = bool(self._filled)

    def _save(self, prompt: SettledPrompt, cause: WarmCause, tokens: int) -> None:
        model = prompt.request.model
        gpu_seconds = tokens * prompt.prefill_seconds_per_token * self._gpus(model)
        totals = self._totals[cause]
        totals.saved_tokens += tokens
        totals.saved_gpu_seconds += gpu_seconds
        self.observer.on_warmth_used(model, cause, tokens, gpu_seconds)

    def shown(self) -> Iterator[dict[str, object]]:
        """The totals of every cause that has any, JSON-ready."""
        for cause, totals in self._totals.items():
            if totals.requests:
                yield {"cause": str(cause), **totals.shown()}


def _shared(hashes: Sequence[BlockHash], filled: _Filled) -> int:
    """Blocks that a chain and a warmed one have in common, by bisection: chained hashes agree up to one place."""
    ours = filled.chain.hashes
    low, high = filled.start + 1, min(filled.end, len(hashes))
    while low < high:
        middle = (low + high + 1) // 2
        if ours[middle - 1] == hashes[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
