"""Where two prompts differ, token by token, with nothing to be read in it.

The journal keeps ids around the first difference. Here, where the models' tokenizers are, each becomes its own text,
masked. What is shown holds neither ids, which a public tokenizer turns back into text, nor text.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from gateway.explain.diff.difference_text import masked

Decode = Callable[[list[int]], str]
"""From token ids to their text."""

Decoders = Callable[[str, str], Decode | None]
"""From the id of a model and that of a tokenizer to what decodes it; None where that is not in this process."""

_NO_TEXT = "·"
"""Stands for a token without a text of its own: part of a character, a special token, an image."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_SHORTEST_RETURN = 3
"""Tokens that have to be the same again before that is taken for more than chance."""


def tokens_shown(window: Mapping[str, Any], decode: Decode) -> dict[str, list[dict[str, str]]]:
    """``difference.tokens`` of ``GET /admin/api/requests/{id}``.

    Args:
        window: The journal's answer to the question ``tokens``: ids ``before`` and ``after``, equal up to ``first``.
        decode: The model's tokenizer.
    """
    before, after, first = window["before"], window["after"], window["first"]
    back_before, back_after = _same_again(before, after, first)
    return {
        "before": _side(before, first, back_before, decode),
        "after": _side(after, first, back_after, decode),
    }


def _side(ids: Sequence[int], first: int, back: int, decode: Decode) -> list[dict[str, str]]:
    def state(position: int) -> str:
        if position == first:
            return "first"
        return "differs" if first < position < back else "same"

    return [
        {"text": _text(ids[position - 1 : position], token, decode), "state": state(position)}
        for position, token in enumerate(ids)
    ]


def _text(previous: Sequence[int], token: int, decode: Decode) -> str:
    """A token's own text, masked. Behind the token in front of it: alone, some tokenizers drop its leading blank."""
    try:
        leading = decode(list(previous)) if previous else ""
        together = decode([*previous, token])
    except Exception:  # noqa: BLE001 - ids outside of the vocabulary, and libraries differ in how they say so
        return _NO_TEXT
    text = together[len(leading) :] if together.startswith(leading) else _BROKEN
    return _NO_TEXT if not text or _BROKEN in text else masked(text)


def _same_again(before: Sequence[int], after: Sequence[int], first: int) -> tuple[int, int]:
    """From where on both windows go on the same, up to the end of one of them; their ends if they do not."""
    ends = len(before), len(after)
    *blocks, _ = SequenceMatcher(None, before[first:], after[first:], autojunk=False).get_matching_blocks()
    if not blocks:
        return ends
    last = blocks[-1]
    begins = first + last.a, first + last.b
    reaches_end = begins[0] + last.size == ends[0] or begins[1] + last.size == ends[1]
    return begins if reaches_end and last.size >= _SHORTEST_RETURN else ends
