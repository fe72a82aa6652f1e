"""Extra keys of a block's identity besides its tokens: ``extra_keys`` of vLLM's events, and the same for media.

vLLM (0.32, ``to_event_extra_keys`` in ``vllm/v1/core/kv_cache_utils.py``) sends one entry per block, None or a list
without tags: the LoRA name if the event has one, a ``[identifier, offset]`` pair for each media item that reaches into
the block (offset relative to the block's start, negative for one that began earlier), the cache salt in the first block
of a prompt, and a digest of prompt embeddings as bytes. Older versions send a media item's bare identifier.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import msgpack


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
