"""KV events in formats that current engines do not use by default.

- Arrays, as both engines sent them before mid-2026: the type, then the fields in the order of the struct; older
  versions have fewer fields. SGLang from 0.5.18 put ``{"cache_salt": …}`` where vLLM has the LoRA name.
- Block hashes as bytes (vLLM with ``VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0``).
- Pairs of neighbouring tokens in place of tokens (SGLang with EAGLE speculation).
"""

from typing import Any

import msgspec
from msgspec import msgpack
from xxhash import xxh3_64_intdigest

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

_HASH_MASK = 2**64 - 1


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
