"""The blocks of a conversation's earlier turns: how they are remembered, and found again.

What is remembered of a turn is a list of all blocks that stood in its prompt, each by an id of its own, under the key
of the conversation up to its last message. So conversations that begin alike overwrite each other's latest turn at most
as long as they are alike: from the first message on in which they differ, each finds its own.
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
    """What is known of earlier turns.

    Attributes:
        blocks: Blocks by the number of the message they stood behind.
        is_whole: Whether that is all there were, as far as can be told.
    """

    blocks: Mapping[int, str]
    is_whole: bool


def recalled(
    said: Sequence[Mapping[str, Any]], takers: Sequence[int], known: Sequence[bytes], given: RuleContext
) -> EarlierBlocks:
    """The blocks of earlier turns.

    Args:
        said: The messages.
        takers: Numbers of those behind which blocks may stand, but for the last one.
        known: The key of the conversation up to each message.
        given: Recalls what was remembered.
    """
    for count in range(len(takers), 0, -1):
        told = given.recall(known[takers[count - 1]])
        ids = told.split(" ") if told else []
        if len(ids) != count:
            continue
        found = {number: given.recall(_id(each)) for number, each in zip(takers, ids, strict=False) if each != _NONE}
        blocks = {number: block for number, block in found.items() if block is not None}
        return EarlierBlocks(blocks, len(blocks) == len(found) and not _any_answered(said, takers[count:]))
    return EarlierBlocks({}, not _any_answered(said, takers))


def remembered(
    takers: Sequence[int], blocks: Mapping[int, str], known: Sequence[bytes], owner: str
) -> Mapping[bytes, str]:
    """What is to be remembered of a turn: every block by its id, and the list of them.

    Args:
        takers: Numbers of the messages behind which blocks may stand, with the last one.
        blocks: Blocks by number.
        known: As in ``recalled``.
        owner: Whose the conversation is: nobody else finds its blocks.
    """
    ids = {number: _name(block, owner) for number, block in blocks.items()}
    told = {_id(ids[number]): block for number, block in blocks.items()}
    return told | {known[takers[-1]]: " ".join(ids.get(number, _NONE) for number in takers)}


def _name(block: str, owner: str) -> str:
    named = f"{owner}\0{block}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=_ID_BYTES).hexdigest()


def _id(name: str) -> bytes:
    """What a block is remembered under: never the key of a conversation, which has another length."""
    return b"block:" + name.encode("ascii", "replace")


def _any_answered(said: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> bool:
    """Whether any of some messages was the last one of a turn."""
    return any(said[number + 1].get("role") == "assistant" for number in numbers)
