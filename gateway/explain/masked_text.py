"""Prompt text as it may be shown: its form without its content."""

import unicodedata

_KEPT_CATEGORIES = frozenset({"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Zs", "Sm", "Sc"})
_QUOTES_OF_KINDS = {"‹": "<", "›": ">"}
_KEPT_CHARACTERS = 4096


def masked(text: str) -> str:
    """Letters become ``x`` or ``X``, digits ``9``; punctuation and blanks are kept; all else becomes ``x``."""
    return text.translate(_masks)


class _Masks(dict[int, str]):
    """What is shown in place of a character, by code point; worked out where a character occurs for the first time."""

    def __missing__(self, code: int) -> str:
        shown = _masked(chr(code))
        if len(self) < _KEPT_CHARACTERS:
            self[code] = shown
        return shown


_masks = _Masks()


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
