"""Positions of the media items of a prompt, from vLLM's render endpoints.

vLLM 0.32, ``MultiModalFeatures`` in ``vllm/entrypoints/scale_out/token_in_token_out/protocol.py``.
"""

from collections.abc import Mapping
from typing import Any

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
