"""What the gateway itself put behind messages: the context blocks of ``dynamic-suffix``.

Their values are meant to vary, and nothing of the client's stands behind them. So what is computed of the block behind
the newest message is necessary work, and if an earlier turn's block is missing, the gateway lost it.
"""

import re
import zlib
from array import array
from collections.abc import Sequence

from gateway.core.explanation import Difference
from gateway.explain.diff.slot import common_length
from gateway.explain.prompt_text import LEADING_ROLES, PromptText
from gateway.explain.reference import tokens_behind

_WORD = re.compile(r"\w+|[^\w\s]")

Blocks = Sequence[tuple[int, int]]
"""As ``Canonicalized.blocks``."""


def is_in_newest(before: PromptText, after: PromptText, blocks: Blocks, difference: Difference) -> bool:
    """Whether two prompts differ first in the newest message with a block: in the block, or in the words before it."""
    index = difference.message
    return bool(blocks) and index == blocks[-1][0] and _is_in_text(before, after, difference)


def is_block_missing(before: PromptText, after: PromptText, difference: Difference) -> bool:
    """Whether two prompts differ first where a message ends in the later one and goes on in the earlier one."""
    index = difference.message
    if index is None or not _is_in_text(before, after, difference):
        return False
    return before.messages[index].text.startswith(after.messages[index].text.rstrip())


def _is_in_text(before: PromptText, after: PromptText, difference: Difference) -> bool:
    """Whether a difference is one of the texts of two messages behind the leading ones."""
    index = difference.message
    if index is None or not difference.line or index >= min(len(before.messages), len(after.messages)):
        return False
    return difference.role not in LEADING_ROLES


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
