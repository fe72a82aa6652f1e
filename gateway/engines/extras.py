"""Extra keys of a block's identity besides its tokens (``extra_keys`` of vLLM's events), and a prompt's media items.

vLLM (0.32, ``to_event_extra_keys`` in ``vllm/v1/core/kv_cache_utils.py``) sends one entry per block, None or a list
without tags: the LoRA name if the event has one, a ``[identifier, offset]`` pair for each media item that reaches into
the block (offset relative to the block's start, negative for one that began earlier), the cache salt in the first block
of a prompt, and a digest of prompt embeddings as bytes. Older versions send a media item's bare identifier.

The positions of media items come from vLLM's render endpoints (0.32, ``MultiModalFeatures`` in
``vllm/entrypoints/scale_out/token_in_token_out/protocol.py``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import msgpack

from gateway.core.prompt import MediaItem


def parse_media(features: Any) -> tuple[MediaItem, ...] | None:
    """The items of a rendered prompt by offset.

    Args:
        features: ``features`` of the engine's answer: ``mm_hashes`` and ``mm_placeholders``, each a list per modality.

    Returns:
        None without items, or if an item lacks its identifier or position.
    """
    if not isinstance(features, Mapping):
        return None
    hashes, places = features.get("mm_hashes"), features.get("mm_placeholders")
    if not isinstance(hashes, Mapping) or not isinstance(places, Mapping) or hashes.keys() != places.keys():
        return None
    items: list[MediaItem] = []
    for modality, identifiers in hashes.items():
        ranges = places[modality]
        if not isinstance(identifiers, list) or not isinstance(ranges, list) or len(identifiers) != len(ranges):
            return None
        for identifier, place in zip(identifiers, ranges, strict=True):
            item = _item(identifier, place)
            if item is None:
                return None
            items.append(item)
    return tuple(sorted(items, key=lambda item: item.offset)) or None


def _item(identifier: Any, place: Any) -> MediaItem | None:
    if not isinstance(identifier, str) or not isinstance(place, Mapping):
        return None
    offset, length = place.get("offset"), place.get("length")
    if type(offset) is not int or type(length) is not int or offset < 0 or length < 1:
        return None
    return MediaItem(offset, length, identifier)


def media_extra(items: Sequence[tuple[str, int]]) -> bytes:
    """The extra keys of media items, as in ``BlockStored.extras``.

    Args:
        items: Identifier, and offset relative to the block's start in tokens, of each item with a placeholder in the
            block, in the prompt's order; at least one.
    """
    return _canonical(items)


def read_extra_keys(
    entries: Sequence[Any], names: int, adapter: str, *, begins_prompt: bool
) -> tuple[str, list[bytes | None] | None]:
    """The salt, and the rest of each block's entry in a canonical form.

    Args:
        entries: The event's ``extra_keys``.
        names: Blocks the event names.
        adapter: The event's LoRA name, empty for none.
        begins_prompt: Whether the first entry can hold a salt.

    Returns:
        The salt, empty for none, and one entry per name as in ``BlockStored.extras``.

    Raises:
        ValueError: the number of entries does not match the blocks.
        TypeError: an entry is not a list, or holds something without canonical form.
    """
    salt = ""
    extras: list[bytes | None] = []
    for index, entry in enumerate(entries):
        if not entry:
            extras.append(None)
            continue
        if not isinstance(entry, list | tuple):
            raise TypeError("an entry of extra_keys is not a list")
        rest = list(entry)
        if adapter and rest[0] == adapter:
            del rest[0]
        if index == 0 and begins_prompt:
            # Behind all media, so the last string. Mistaking an older version's bare identifier for a salt is
            # harmless: no request has such a salt, so the block matches nothing.
            for at in reversed(range(len(rest))):
                if isinstance(rest[at], str):
                    salt = rest.pop(at)
                    break
        extras.append(_canonical(rest) if rest else None)
    if not any(extras):
        return salt, None
    if len(extras) != names:
        raise ValueError("extra_keys does not have an entry for each block")
    return salt, extras


def _canonical(keys: Sequence[Any]) -> bytes:
    """MessagePack: pairs, strings and bytes are distinct, and every value is self-delimiting."""
    return msgpack.encode(keys)
