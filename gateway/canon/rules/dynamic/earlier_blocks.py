"""Stores and looks up the context blocks of a conversation's earlier turns.

A turn is stored as the list of the ids of all blocks in its prompt, under the key of the conversation up to its last
message; the blocks are stored by id. So conversations with the same beginning share entries only up to the first message
in which they differ.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.canon.rule import RuleContext

_ID_BYTES = 8
_NONE = "-"


@dataclass(frozen=True, slots=True)
class EarlierBlocks:
    """Blocks of earlier turns.

    Attributes:
        blocks: Blocks by the index of the message to which they were appended.
        is_whole: False if blocks are known to be missing.
    """

    blocks: Mapping[int, str]
    is_whole: bool


def recalled(
    said: Sequence[Mapping[str, Any]], takers: Sequence[int], known: Sequence[bytes], given: RuleContext
) -> EarlierBlocks:
    """The blocks of earlier turns.

    Args:
        said: The messages.
        takers: Indexes of messages to which blocks may be appended, without the last one.
        known: Key of the conversation up to each message.
        given: Looks up stored blocks.
    """
    for count in range(len(takers), 0, -1):
        entry = given.recall(known[takers[count - 1]])
        ids = entry.split(" ") if entry else []
        if len(ids) != count:
            continue
        found = {number: given.recall(_id(each)) for number, each in zip(takers, ids, strict=False) if each != _NONE}
        blocks = {number: block for number, block in found.items() if block is not None}
        return EarlierBlocks(blocks, len(blocks) == len(found) and not _any_answered(said, takers[count:]))
    return EarlierBlocks({}, not _any_answered(said, takers))


def remembered(
    takers: Sequence[int], blocks: Mapping[int, str], known: Sequence[bytes], owner: str
) -> Mapping[bytes, str]:
    """The entries to store for a turn: every block by its id, and the list of ids.

    Args:
        takers: Indexes of messages to which blocks may be appended, including the last one.
        blocks: Blocks by index of the message.
        known: See ``recalled``.
        owner: Owner of the conversation; part of the ids, so that other owners cannot look up its blocks.
    """
    ids = {number: _name(block, owner) for number, block in blocks.items()}
    entries = {_id(ids[number]): block for number, block in blocks.items()}
    return entries | {known[takers[-1]]: " ".join(ids.get(number, _NONE) for number in takers)}


def _name(block: str, owner: str) -> str:
    named = f"{owner}\0{block}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=_ID_BYTES).hexdigest()


def _id(name: str) -> bytes:
    """Storage key of a block; differs in length from keys of conversations."""
    return b"block:" + name.encode("ascii", "replace")


def _any_answered(said: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> bool:
    """Whether one of the messages was the last one of a turn, that is, was answered."""
    return any(said[number + 1].get("role") == "assistant" for number in numbers)
