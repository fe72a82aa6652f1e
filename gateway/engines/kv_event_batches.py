"""Decodes batches of KV events of both engines.

They share one format (SGLang took vLLM's over): a MessagePack array ``[timestamp, [event…], rank?]``, the rank being
``data_parallel_rank`` in vLLM (0.32, ``vllm/distributed/kv_events.py``) and ``attn_dp_rank`` in SGLang (0.5.23,
``sglang/srt/disaggregation/kv_events.py``). Events are maps with a ``type``, fields at their defaults left out.

Maps as the present versions send them are decoded into typed structs, a few microseconds each. A batch that does
not fit is decoded again event by event, without assumptions, so that one malformed event does not affect the others.

Forms that current engines do not use by default:

- Arrays, as both engines sent them before mid-2026: the type, then the fields in the order of the struct; older
  versions have fewer fields. SGLang from 0.5.18 put ``{"cache_salt": …}`` where vLLM has the LoRA name.
- Block hashes as bytes (vLLM with ``VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0``).
- Pairs of neighbouring tokens in place of tokens (SGLang with EAGLE speculation).
"""

import math
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import msgpack
from xxhash import xxh3_64_intdigest

from gateway.core.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KvEvent,
    Medium,
    UnknownEvent,
)
from gateway.engines.extras import read_extra_keys

FIELDS = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "locality",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx", "locality"),
    "AllBlocksCleared": (),
}


class _Named(msgspec.Struct, gc=False):
    type: str


class _First(msgspec.Struct, array_like=True, gc=False):
    type: str


_type_of_map = msgpack.Decoder(_Named).decode
_type_of_array = msgpack.Decoder(_First).decode


def normal_form(event: object) -> dict[str, Any]:
    """An event as a map with integer hashes and single tokens; a map that comes in is changed.

    Raises:
        ValueError: it is neither a map nor an array of a known type.
        TypeError: a hash is neither a number nor bytes.
    """
    if isinstance(event, dict):
        fields = event
    elif isinstance(event, list) and event and event[0] in FIELDS:
        fields = dict(zip(FIELDS[event[0]], event[1:], strict=False))
        fields["type"] = event[0]
        if isinstance(metadata := fields.get("lora_name"), dict):
            fields["lora_name"], fields["cache_salt"] = None, metadata.get("cache_salt")
    else:
        raise ValueError("an event of an unknown form")
    if isinstance(hashes := fields.get("block_hashes"), list):
        fields["block_hashes"] = [block_name(value) for value in hashes]
    if (parent := fields.get("parent_block_hash")) is not None:
        fields["parent_block_hash"] = block_name(parent)
    ids = fields.get("token_ids")
    if ids is None:
        fields["token_ids"] = []
    elif isinstance(ids, list) and ids and isinstance(ids[0], list):
        fields["token_ids"] = [first for first, _ in ids]
    return fields


def event_type(raw: bytes | msgspec.Raw) -> str:
    """What an event that cannot be read calls itself."""
    for decode in (_type_of_map, _type_of_array):
        try:
            return decode(raw).type
        except (ValueError, RecursionError):
            continue
    return "unreadable"


def read_rank(value: object) -> int | None:
    """A batch's rank; None for what cannot be one."""
    return value if type(value) is int and value >= 0 else None


def block_name(value: object) -> int:
    """A block's name, the same whether the engine sends numbers or bytes: it makes numbers of the last eight bytes."""
    if type(value) is int:
        return value & _HASH_MASK
    if isinstance(value, bytes):
        return int.from_bytes(value[-8:], "big") if len(value) >= 8 else xxh3_64_intdigest(value)
    raise TypeError("a block hash is neither a number nor bytes")


_HASH_MASK = 2**64 - 1

TYPE_CHARACTERS = 64
"""Length of an unknown event type, which is chosen by the engine and becomes a metric label."""

UNREADABLE_ERRORS = (ValueError, TypeError, OverflowError, RecursionError, MemoryError)
"""Errors of msgspec for malformed bytes (its own are ValueErrors), and of the conversions here for invalid values."""

_SPARSE = {
    "full_attention": False,
    "mla_attention": False,
    "sink_full_attention": False,
    "sliding_window": True,
    "sliding_window_mla": True,
    "chunked_local_attention": True,
    "mamba": True,
}
"""vLLM's ``KVCacheSpecKind`` (``vllm/v1/kv_cache_interface.py``). For encoders, cross attention and ``unknown`` it is
not defined which blocks a hit needs."""

_MEDIA = {None: Medium.GPU, "GPU": Medium.GPU, "CPU": Medium.CPU, "CPU_PINNED": Medium.CPU}


class BatchUnreadable(ValueError):
    """A payload that is not a batch of events."""


class StoredForm(msgspec.Struct, tag="BlockStored", gc=False):
    """A run of blocks as it is sent."""

    block_hashes: list[int]
    token_ids: list[int]
    block_size: int
    parent_block_hash: int | None = None
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    cache_salt: str | None = None


class RemovedForm(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Removed blocks as they are sent."""

    block_hashes: list[int]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    pass


_Event = StoredForm | RemovedForm | _Cleared

_FORMS: dict[str, type[_Event]] = {"BlockStored": StoredForm, "BlockRemoved": RemovedForm, "AllBlocksCleared": _Cleared}


class _Batch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[_Event]
    rank: int | None = None


class _RawBatch(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[msgspec.Raw]
    rank: Any = None


class _RawMapBatch(msgspec.Struct, gc=False):
    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: Any = None
    attn_dp_rank: Any = None


_decode = msgpack.Decoder(_Batch).decode
_decode_event = msgpack.Decoder(_Event).decode
_decode_raw = msgpack.Decoder(_RawBatch).decode
_decode_raw_map = msgpack.Decoder(_RawMapBatch).decode


def decode_batch(payload: bytes) -> EventBatch:
    """The last frame of an event message, decoded.

    Unknown and malformed events are ``UnknownEvent``; the others of the batch are decoded.

    Raises:
        BatchUnreadable: the payload is not a batch.
    """
    try:
        batch = _decode(payload)
        return EventBatch(read_timestamp(batch.ts), [_read(event) for event in batch.events], read_rank(batch.rank))
    except UNREADABLE_ERRORS:
        return _decode_each(payload)


def decode_event(raw: bytes | msgspec.Raw) -> KvEvent:
    """One encoded event; ``UnknownEvent`` if it cannot be read."""
    try:
        return _read(_decode_event(raw))
    except UNREADABLE_ERRORS:
        return _read_odd(raw)


def _decode_each(payload: bytes) -> EventBatch:
    timestamp, events, rank = open_batch(payload)
    return EventBatch(timestamp, [_read_odd(event) for event in events], rank)


def open_batch(payload: bytes) -> tuple[float, list[msgspec.Raw], int | None]:
    """Time stamp, events still encoded, and rank.

    Raises:
        BatchUnreadable: the payload is not a batch.
    """
    try:
        batch = _decode_raw(payload)
        return read_timestamp(batch.ts), batch.events, read_rank(batch.rank)
    except UNREADABLE_ERRORS as error:
        no_array = error
    try:
        named = _decode_raw_map(payload)
        timestamp = read_timestamp(named.ts)
    except UNREADABLE_ERRORS:
        raise BatchUnreadable(f"no batch of KV events: {no_array}") from no_array
    rank = read_rank(named.data_parallel_rank)
    return timestamp, named.events, read_rank(named.attn_dp_rank) if rank is None else rank


def read_timestamp(value: object) -> float:
    """A batch's time stamp.

    Raises:
        ValueError: it is not a finite number, so batches cannot be ordered.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError("the time stamp is no finite number")
    return float(value)


def _read_odd(raw: bytes | msgspec.Raw) -> KvEvent:
    try:
        fields = normal_form(msgpack.decode(raw))
        return _read(msgspec.convert(fields, _FORMS[fields["type"]]))
    except (*UNREADABLE_ERRORS, KeyError):
        return UnknownEvent(event_type(raw)[:TYPE_CHARACTERS])


def _read(event: _Event) -> KvEvent:
    if isinstance(event, StoredForm):
        return read_stored(event)
    if isinstance(event, RemovedForm):
        return BlockRemoved(_names(event.block_hashes), read_medium(event.medium, event.locality), event.group_idx or 0)
    return AllBlocksCleared()


def read_stored(event: StoredForm) -> BlockStored:
    """A run of blocks.

    Raises:
        ValueError: its fields contradict each other.
        TypeError: a field holds something of another type.
        OverflowError: a token is not an unsigned 32-bit number.
    """
    hashes, ids, size, parent = event.block_hashes, event.token_ids, event.block_size, event.parent_block_hash
    # No tokens: a placeholder of vLLM's offloading connectors, for blocks whose tokens were sent when they were
    # computed.
    if size < 0 or (ids and (size == 0 or len(ids) < len(hashes) * size)):
        raise ValueError("fewer tokens than the blocks need")
    adapter = read_adapter(event)
    salt, extras = event.cache_salt or "", None
    if event.extra_keys and any(event.extra_keys):
        found, extras = read_extra_keys(event.extra_keys, len(hashes), adapter, begins_prompt=parent is None)
        salt = salt or found
    medium = read_medium(event.medium, event.locality)
    if medium is not Medium.GPU and parent is None and event.extra_keys is None and event.group_idx is not None:
        # vLLM's offloading connectors leave the extra keys out even when there are some
        # (vllm/distributed/kv_transfer/kv_connector/v1/offloading/events.py), so it is unknown whether this
        # first block is salted. Its names match the event that was sent when the blocks were computed.
        ids = []
    return BlockStored(
        _names(hashes),
        parent & _HASH_MASK if parent is not None else None,
        _packed(ids),
        size,
        medium,
        event.group_idx or 0,
        _SPARSE.get(event.kv_cache_spec_kind) if event.kv_cache_spec_kind is not None else None,
        _window(event),
        adapter,
        salt,
        extras,
    )


def _window(event: StoredForm) -> int:
    """As ``BlockStored.window``. Of a sliding window without the token to be computed
    (``vllm/v1/core/single_type_kv_cache_manager.py``); a state-space layer needs its last state."""
    if event.kv_cache_spec_kind in ("sliding_window", "sliding_window_mla"):
        return max((event.kv_cache_spec_sliding_window or 1) - 1, 0)
    return int(event.kv_cache_spec_kind == "mamba")


def read_adapter(event: StoredForm) -> str:
    """Name of the LoRA adapter, empty for none."""
    if not event.lora_name and event.lora_id is not None:
        # The adapter of an id is unknown to the gateway: use a name of its own, never that of the base model.
        return f"lora_id={event.lora_id}"
    return event.lora_name or ""


def _names(hashes: list[int]) -> Sequence[int]:
    """Block hashes as unsigned numbers; SGLang's are signed."""
    return [value & _HASH_MASK for value in hashes] if hashes and min(hashes) < 0 else hashes


def _packed(ids: list[int]) -> bytes:
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def read_medium(medium: str | None, locality: str | None) -> Medium:
    """The medium of an engine's name for it."""
    if locality == "REMOTE":
        return Medium.DISK
    known = _MEDIA.get(medium)
    if known is None and medium is not None:
        upper = medium.upper()
        known = Medium.GPU if upper == "GPU" else Medium.CPU if upper.startswith("CPU") else Medium.DISK
    return known or Medium.GPU
