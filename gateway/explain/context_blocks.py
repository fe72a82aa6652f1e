"""What the gateway itself put behind messages: the context blocks of ``dynamic-suffix``.

Their values are meant to vary, and nothing of the client's stands behind them. So what is computed of the block behind
the newest message is necessary work. Where an earlier turn's block is another one than before, the gateway lost it.
"""

import re
import zlib
from array import array
from collections.abc import Sequence
from enum import Enum

from gateway.core.explanation import Difference
from gateway.explain.diff.slot import common_length
from gateway.explain.prompt_text import LEADING_ROLES, PromptText
from gateway.explain.reference import tokens_behind

_WORD = re.compile(r"\w+|[^\w\s]")

Blocks = Sequence[tuple[int, int]]
"""As ``Canonicalized.blocks``."""


class BlockPlace(Enum):
    """Where a difference stands, as seen from the context blocks."""

    ELSEWHERE = "elsewhere"
    """In no message with a block, or in an earlier turn's own words."""
    EARLIER = "earlier"
    """In the block of an earlier turn, which was put back."""
    NEWEST = "newest"
    """In the newest message with a block: in the block, or in the words in front of it."""


def block_place(before: PromptText, after: PromptText, blocks: Blocks, difference: Difference) -> BlockPlace:
    """Where the first difference of two prompts stands."""
    index = difference.message
    if not blocks or index is None or difference.role in LEADING_ROLES or not difference.line:
        return BlockPlace.ELSEWHERE
    characters = dict(blocks).get(index)
    if characters is None or index >= min(len(before.messages), len(after.messages)):
        return BlockPlace.ELSEWHERE
    if index == blocks[-1][0]:
        return BlockPlace.NEWEST
    text = after.messages[index].text
    at = common_length(before.messages[index].text, text)
    return BlockPlace.EARLIER if at >= len(text) - characters else BlockPlace.ELSEWHERE


def own_share(before: PromptText, after: PromptText, blocks: Blocks) -> float:
    """Of what occurs in both prompts behind a difference in the newest message with a block, the client's own share.

    Counted in words, since the place of the block is known in characters only: 0 if none of the client's words behind
    the difference occur in the earlier prompt, which is exact.
    """
    index, characters = blocks[-1]
    old, text = before.messages[index].text, after.messages[index].text
    at, end = common_length(old, text), len(text) - characters
    earlier = _words(old[at:])
    own = tokens_behind(earlier, _words(text[at:end]), 0)
    block = tokens_behind(earlier, _words(text[max(at, end) :]), 0)
    return own / (own + block) if own else 0.0


def _words(text: str) -> bytes:
    """The words of a text as if they were token ids."""
    return array("I", (zlib.crc32(word.encode("utf-8", "replace")) for word in _WORD.findall(text))).tobytes()
