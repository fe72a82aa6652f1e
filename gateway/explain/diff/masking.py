"""Text around a difference, with nothing in it that was written by anybody."""

import unicodedata

_AROUND = 40
_SLOT_CHARS = 80
_KEPT_CATEGORIES = frozenset({"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Zs", "Sm", "Sc"})
_QUOTES_OF_KINDS = {"‹": "<", "›": ">"}


def masked(text: str) -> str:
    """Letters as ``x`` or ``X``, digits as ``9``; punctuation and blanks as they are; everything else as ``x``."""
    return "".join(map(_masked, text))


def _masked(character: str) -> str:
    if character in "\n\t" or character in _QUOTES_OF_KINDS:
        return _QUOTES_OF_KINDS.get(character, character)
    if character == "\r":
        return "␍"
    category = unicodedata.category(character)
    if category in {"Lu", "Lt"}:
        return "X"
    if category[0] == "N":
        return "9"
    return character if category in _KEPT_CATEGORIES or (category == "Sk" and character.isascii()) else "x"


def window(text: str, start: int, end: int, kind: str = "") -> str:
    """The text around a span, masked.

    Args:
        text: The whole text.
        start: Where the span begins.
        end: Where it ends.
        kind: What stands in the span, to be shown in place of it; empty to show it masked.
    """
    shown = f"‹{kind}›" if kind else masked(text[start : min(end, start + _SLOT_CHARS)])
    left, right = max(start - _AROUND, 0), min(end + _AROUND, len(text))
    gap = "" if kind or end - start <= _SLOT_CHARS else "…"
    return (
        ("…" if left else "")
        + masked(text[left:start])
        + shown
        + (gap or masked(text[end:right]) + ("…" if right < len(text) else ""))
    )
