"""Prompt text as it may be shown: its form without its content."""

import unicodedata

_KEPT_CATEGORIES = frozenset({"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Zs", "Sm", "Sc"})
_QUOTES_OF_KINDS = {"‹": "<", "›": ">"}


def masked(text: str) -> str:
    """Letters become ``x`` or ``X``, digits ``9``; punctuation and blanks are kept; all else becomes ``x``."""
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
