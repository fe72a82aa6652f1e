"""Finds the first differing character of two texts and the slot around it, in windows: a text may be a megabyte."""

import re
from dataclasses import dataclass

from gateway.canon.recognizer.value_kind import TextWindow

_BEHIND, _AHEAD = 160, 240
_SLOT_AHEAD = 600
_TOKEN_CHARS = 64
_AGREEING_TOKENS = 4
_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(
    rf"[{_EAST_ASIAN}]|(?:(?![{_EAST_ASIAN}])[^\W_]|[\u0300-\u036f\u0900-\u0903\u093a-\u0957])+|\r\n|[^\S\r\n]+|.",
    re.DOTALL,
)
_ASCII_TOKEN = re.compile(r"[^\W_]+|\r\n|[^\S\r\n]+|.", re.DOTALL)
_END = "\0end"


@dataclass(frozen=True, slots=True)
class Slot:
    """The first differing span of two texts, in whole words.

    Attributes:
        start: Start in both texts.
        before_end: End in the first text.
        after_end: End in the second text.
    """

    start: int
    before_end: int
    after_end: int


def common_length(one: str, other: str) -> int:
    """Length of the common prefix of two texts, in characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def line_and_column(text: str, at: int) -> tuple[int, int]:
    """Line and column of a character, from 1."""
    return text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1


def window_at(text: str, at: int) -> tuple[TextWindow, int]:
    """The text around a character, and its offset in the text."""
    start = max(at - _BEHIND, 0)
    return TextWindow(text[start : at + _AHEAD], at - start), start


def slot_at(before: str, after: str, at: int) -> Slot:
    """The slot around the first difference: from the start of its word to where both texts agree again.

    Args:
        before: The first text.
        after: The second.
        at: Their first differing character.
    """
    start = at
    while start > max(at - _TOKEN_CHARS, 0) and _is_in_word(before, after, start):
        start -= 1
    before_tokens, before_ends = _tokens(before, start)
    after_tokens, after_ends = _tokens(after, start)
    first_at: dict[tuple[str, ...], int] = {}
    for index in range(len(before_tokens) - _AGREEING_TOKENS, -1, -1):
        first_at[tuple(before_tokens[index : index + _AGREEING_TOKENS])] = index
    best: tuple[int, int, int] | None = None
    for index in range(len(after_tokens) - _AGREEING_TOKENS + 1):
        if best and index >= best[0]:
            break
        found = first_at.get(tuple(after_tokens[index : index + _AGREEING_TOKENS]))
        if found is not None and (best is None or found + index < best[0]):
            best = (found + index, found, index)
    before_end = before_ends[best[1]] if best else before_ends[-1]
    after_end = after_ends[best[2]] if best else after_ends[-1]
    while (
        min(before_end, after_end) > start
        and before[before_end - 1] == after[after_end - 1]
        and (before[before_end - 1] in " \t")
    ):
        before_end, after_end = before_end - 1, after_end - 1
    return Slot(start, before_end, after_end)


def _is_in_word(before: str, after: str, at: int) -> bool:
    """Whether the characters before and at a position belong to one word."""
    left = before[at - 1]
    if not left.isalnum() or _EAST_ASIAN_CHARACTER.match(left):
        return False
    return any(text[at : at + 1].isalnum() for text in (before, after))


_EAST_ASIAN_CHARACTER = re.compile(f"[{_EAST_ASIAN}]")


def _tokens(text: str, start: int) -> tuple[list[str], list[int]]:
    """Words, blanks and punctuation from ``start`` on, with their offsets; the ends of two texts match each other."""
    piece = text[start : start + _SLOT_AHEAD]
    tokens: list[str] = []
    begins: list[int] = []
    # The expression for all scripts is five times as slow.
    for match in (_ASCII_TOKEN if piece.isascii() else _TOKEN).finditer(piece):
        tokens.append(match[0])
        begins.append(start + match.start())
    if start + len(piece) >= len(text):
        tokens += [_END] * _AGREEING_TOKENS
        begins += [len(text)] * _AGREEING_TOKENS
    begins.append(start + len(piece))
    return tokens, begins
