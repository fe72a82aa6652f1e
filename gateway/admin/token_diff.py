"""Shows token by token where two prompts differ, with masked text.

The journal keeps ids around the first difference. Here the models' tokenizers decode each id, and its text is masked.
The result holds neither text nor ids, which a public tokenizer would decode.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from gateway.explain.diff.masking import masked

Decode = Callable[[list[int]], str]
"""Decodes token ids to text."""

Decoders = Callable[[str, str], Decode | None]
"""The decoder for a model id and a tokenizer id; None if it is not loaded in this process."""

_NO_TEXT = "·"
"""Shown for a token without text: part of a character, a special token, an image."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_SHORTEST_RETURN = 3
"""Equal tokens in a row from which on the prompts count as equal again."""


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
    except Exception:  # noqa: BLE001 - ids outside of the vocabulary; libraries raise different errors
        return _NO_TEXT
    text = together[len(leading) :] if together.startswith(leading) else _BROKEN
    return _NO_TEXT if not text or _BROKEN in text else masked(text)


def _same_again(before: Sequence[int], after: Sequence[int], first: int) -> tuple[int, int]:
    """Where both windows become equal again up to the end of one of them; their ends if they do not."""
    ends = len(before), len(after)
    *blocks, _ = SequenceMatcher(None, before[first:], after[first:], autojunk=False).get_matching_blocks()
    if not blocks:
        return ends
    last = blocks[-1]
    begins = first + last.a, first + last.b
    reaches_end = begins[0] + last.size == ends[0] or begins[1] + last.size == ends[1]
    return begins if reaches_end and last.size >= _SHORTEST_RETURN else ends
