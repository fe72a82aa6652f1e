"""Encodes KV events in the engines' wire formats.

A batch is the array ``[timestamp, [event, ...], rank]``. Current releases send each event as a map with a ``type``
without default values; earlier ones sent arrays, and the earliest shorter arrays, without medium and rank.
(vLLM 0.32, ``vllm/distributed/kv_events.py`` and ``vllm/v1/core/block_pool.py``; SGLang,
``sglang/srt/disaggregation/kv_events.py`` and ``sglang/srt/mem_cache/events.py``.)
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby
from typing import Any

import msgspec

from gateway.core.engine_facts import EngineKind
from gateway.core.prompt import TOKEN_BYTES
from gateway.simulator.block_cache import CacheEvent, Cleared, Prefix, Removed, Stored

_MEDIUM = "GPU"

Json = dict[str, Any]
Name = int | bytes


class EventEncoding(StrEnum):
    """The layout of an event."""

    MAP = "map"
    """A map with a ``type``, defaults left out: current releases."""
    POSITIONAL = "positional"
    """An array of every field: releases up to the middle of 2026."""
    POSITIONAL_SHORT = "positional-short"
    """An array that ends after ``lora_id``, in a batch without rank: the first releases."""


class EventHashes(StrEnum):
    """How events identify a block."""

    INT = "int"
    """64 bits of its hash: unsigned in vLLM, signed in SGLang."""
    BYTES = "bytes"
    """Its whole hash, 32 bytes."""


class EventEncoder:
    """Encodes the batches of one engine.

    Args:
        flavor: The engine whose format is used.
        encoding: The layout of events.
        hashes: How blocks are named.
        adapters: The LoRA adapters' names in the order of their ids, which start with 1.
        window: As of ``BlockCache``: a group of layers with a sliding window comes before the one with full attention.
    """

    def __init__(
        self,
        flavor: EngineKind,
        encoding: EventEncoding,
        hashes: EventHashes,
        adapters: Sequence[str] = (),
        window: int = 0,
    ) -> None:
        self._encoding = encoding
        self._hashes = hashes
        self._window = window
        self._signed = flavor == EngineKind.SGLANG
        self._ids = {adapter: number for number, adapter in enumerate(adapters, start=1)}
        self._events: Callable[[Iterable[CacheEvent]], Iterator[Json]] = (
            self._vllm if flavor == EngineKind.VLLM else self._sglang
        )
        self._pack = msgspec.msgpack.Encoder().encode

    def name(self, prefix: Prefix) -> Name:
        """The block's hash as events have it."""
        if self._hashes == EventHashes.BYTES:
            return prefix.hash
        if self._signed:
            return int.from_bytes(prefix.hash[:8], "big", signed=True)
        return int.from_bytes(prefix.hash[-8:], "big")

    def encode(self, events: Iterable[CacheEvent], timestamp: float, rank: int) -> bytes:
        """One batch in MessagePack. ``timestamp`` is Unix time in seconds."""
        listed = [self._laid_out(event) for event in self._events(events)]
        short = self._encoding == EventEncoding.POSITIONAL_SHORT
        return self._pack([timestamp, listed] if short else [timestamp, listed, rank])

    def _vllm(self, events: Iterable[CacheEvent]) -> Iterator[Json]:
        for event in events:
            match event:
                case Stored(run):
                    stored = self._stored(run) | {
                        "lora_id": self._ids.get(run[0].adapter),
                        "medium": _MEDIUM,
                        "lora_name": run[0].adapter or None,
                        "extra_keys": [_extra_keys(prefix) for prefix in run],
                        "group_idx": 0,
                    }
                    if self._window:
                        kept = {name: stored[name][-self._window :] for name in ("block_hashes", "extra_keys")}
                        size = {"kv_cache_spec_sliding_window": self._window * stored["block_size"]}
                        yield stored | kept | {"kv_cache_spec_kind": "sliding_window"} | size
                    yield stored | {"group_idx": int(self._window > 0), "kv_cache_spec_kind": "full_attention"}
                case Removed(prefix, windowed):
                    for group in range(0 if windowed or not self._window else 1, 2 if self._window else 1):
                        yield _removed([self.name(prefix)]) | {"group_idx": group}
                case Cleared():
                    yield {"type": "AllBlocksCleared"}

    def _sglang(self, events: Iterable[CacheEvent]) -> Iterator[Json]:
        for kind, group in groupby(events, type):
            if kind is Removed:
                # One event for a whole node of the tree, however many pages it has.
                yield _removed([self.name(event.prefix) for event in group if isinstance(event, Removed)])
                continue
            for event in group:
                if isinstance(event, Cleared):
                    yield {"type": "AllBlocksCleared"}
                elif isinstance(event, Stored):
                    yield from (self._page(prefix) for prefix in event.run)

    def _page(self, prefix: Prefix) -> Json:
        event: Json = self._stored((prefix,)) | {"lora_id": None, "medium": _MEDIUM}
        if self._encoding == EventEncoding.POSITIONAL:
            return event | {"metadata": {"cache_salt": prefix.salt}} if prefix.salt else event
        if prefix.salt:
            event["cache_salt"] = prefix.salt
        if prefix.adapter:
            event["lora_name"] = prefix.adapter
        return event

    def _stored(self, run: tuple[Prefix, ...]) -> Json:
        parent = run[0].parent
        tokens = b"".join(prefix.tokens for prefix in run)
        return {
            "type": "BlockStored",
            "block_hashes": [self.name(prefix) for prefix in run],
            "parent_block_hash": None if parent is None else self.name(parent),
            "token_ids": list(memoryview(tokens).cast("I")),
            "block_size": len(tokens) // len(run) // TOKEN_BYTES,
        }

    def _laid_out(self, event: Json) -> Json | list[Any]:
        if self._encoding == EventEncoding.MAP:
            return event
        fields = list(event.values())
        if self._encoding == EventEncoding.POSITIONAL_SHORT:
            return fields[: {"BlockStored": 6, "BlockRemoved": 2}.get(event["type"], 1)]
        return fields


def _removed(names: list[Name]) -> Json:
    return {"type": "BlockRemoved", "block_hashes": names, "medium": _MEDIUM}


def _extra_keys(prefix: Prefix) -> list[str] | None:
    """The parts of a block's identity other than tokens, unlabelled: adapter, then salt."""
    keys = [prefix.adapter] if prefix.adapter else []
    if prefix.salt and prefix.parent is None:
        keys.append(prefix.salt)
    return keys or None
