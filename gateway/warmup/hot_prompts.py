"""Keeps the token ids of the hottest prefixes, in memory only, so that they can be sent again."""

from dataclasses import dataclass, field

import msgspec

from gateway.core.ids import BlockHash, Target
from gateway.core.ports import SettledPrompt
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import NO_IDENTITY, ChatRequest
from gateway.stats.hot_prefixes import HotPrefixes

_TARGETS_KEPT = 16
"""Targets of one prefix. It is sent again to those that served it."""

_MIN_TOKENS = 64
"""Shorter prefixes are computed faster than a request is sent."""

_MIN_REQUESTS = 0.01
"""A prefix with fewer (decayed) requests is forgotten, as ``HotPrefixes`` does."""


@dataclass(slots=True, eq=False)
class HotPrompt:
    """A prefix that many requests share.

    Attributes:
        request: The last client's request that was seen with it, without its content, headers and session.
        ids: Token ids of the prefix, as in ``TokenizedPrompt``.
        last: Hash of its last block, in the epoch in which it was seen last.
        requests: Requests that begin with it, decayed to ``at``.
        at: Unix seconds.
        targets: Where it was served, the most recent last.
    """

    request: ChatRequest
    ids: bytes
    last: BlockHash
    requests: float
    at: float
    targets: dict[Target, None] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Its length."""
        return len(self.ids) // TOKEN_BYTES

    @property
    def salt(self) -> str:
        """The salt that its clients sent, which is part of its prefix space; empty for none."""
        return str(self.request.fields.get("cache_salt", ""))


class HotPrompts:
    """A ``PromptObserver`` that keeps the hottest prefixes' tokens once a request with each of them comes by.

    Args:
        hot: Ranks the prefixes.
        most: Prefixes that are kept; 0 for none.

    Attributes:
        awaits_clients: See ``PromptObserver``: while there are prefixes to be kept.
    """

    def __init__(self, hot: HotPrefixes, most: int = 0) -> None:
        self.most = most
        self.awaits_clients = False
        self._hot = hot
        self._wanted: dict[BlockHash, tuple[int, float]] = {}
        self._kept: dict[BlockHash, HotPrompt] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def refresh(self, now: float) -> None:
        """Rank the prefixes again; ``now`` is Unix seconds."""
        hottest = self._hot.hottest("", self.most, now) if self.most else []
        self._wanted = {
            BlockHash(each.chain.hashes[-1]): (len(each.chain.hashes), each.requests)
            for each in hottest
            if each.tokens >= _MIN_TOKENS
        }
        self.awaits_clients = bool(self._wanted)
        for last, (_, requests) in self._wanted.items():
            if (kept := self._kept.get(last)) is not None:
                kept.requests, kept.at = requests, now
        ranked = sorted(self._kept.values(), key=lambda each: -self._requests(each, now))
        self._kept = {each.last: each for each in ranked[: self.most] if self._requests(each, now) >= _MIN_REQUESTS}

    def on_prompt(self, prompt: SettledPrompt) -> None:
        """See ``PromptObserver``."""
        if not prompt.ids or prompt.request.warmup_target is not None:
            return
        hashes = prompt.chain.hashes
        for last, (blocks, requests) in self._wanted.items():
            if blocks > len(hashes) or hashes[blocks - 1] != last:
                continue
            kept = self._kept.get(last)
            if kept is None:
                kept = self._kept[last] = self._made(prompt, blocks, last, requests)
            kept.targets.pop(prompt.target, None)
            kept.targets[prompt.target] = None
            if len(kept.targets) > _TARGETS_KEPT:
                del kept.targets[next(iter(kept.targets))]

    def longest(self) -> list[HotPrompt]:
        """The kept prefixes, hottest first, without those that are the beginning of another one in the same space, and
        one of each where it was kept in several epochs."""
        chosen: list[HotPrompt] = []
        for each in sorted(self._kept.values(), key=lambda one: (-len(one.ids), -one.at)):
            if not any(_contains(other, each) for other in chosen):
                chosen.append(each)
        return sorted(chosen, key=lambda each: -each.requests)

    def _made(self, prompt: SettledPrompt, blocks: int, last: BlockHash, requests: float) -> HotPrompt:
        salt = prompt.request.fields.get("cache_salt")
        plain = msgspec.structs.replace(
            prompt.request,
            query=b"",
            body=b"",
            fields={} if salt is None else {"cache_salt": salt},
            headers=((b"content-type", b"application/json"),),
            session=None,
            identity=NO_IDENTITY,
            peer="",
            timeout_seconds=None,
            dropped=None,
            assignment=None,
        )
        ids = prompt.ids[: blocks * prompt.chain.block_size * TOKEN_BYTES]
        return HotPrompt(plain, ids, last, requests, prompt.at)

    def _requests(self, kept: HotPrompt, now: float) -> float:
        decay: float = 0.5 ** (max(now - kept.at, 0.0) / self._hot.half_life_seconds)
        return kept.requests * decay


def _contains(longer: HotPrompt, shorter: HotPrompt) -> bool:
    one, other = longer.request, shorter.request
    return (
        one.model == other.model
        and one.caller.tenant.id == other.caller.tenant.id
        and one.caller.scope == other.caller.scope
        and one.caller.application == other.caller.application
        and longer.salt == shorter.salt
        and longer.ids.startswith(shorter.ids)
    )
