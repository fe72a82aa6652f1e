"""Compares two texts: their first differing character, the slot around it, and whether only their form differs.

Works in windows: a text may be a megabyte. ``sameness`` separates blanks, line ends, quotes and Unicode forms from
other content; ``are_alike`` finds versions of one text.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.canon.recognizer.value_kind import TextWindow

_BEHIND, _AHEAD = 160, 240
_SLOT_AHEAD = 600
_SLOT_NEAR = 120
"""Most slots end within so many characters."""
_TOKEN_CHARS = 64
_AGREEING_TOKENS = 4
_EAST_ASIAN = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(
    rf"[{_EAST_ASIAN}]|(?:[^\W_{_EAST_ASIAN}]++|[\u0300-\u036f\u0900-\u0903\u093a-\u0957]++)++|\r\n|[^\S\r\n]+|.",
    re.DOTALL,
)
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
    # Where both texts end within the near piece, the longer one is the same.
    has_more = max(len(before), len(after)) > start + _SLOT_NEAR
    best = (_agreement(before, after, start, _SLOT_NEAR) if has_more else None) or _agreement(
        before, after, start, _SLOT_AHEAD
    )
    before_end, after_end = min(start + _SLOT_AHEAD, len(before)), min(start + _SLOT_AHEAD, len(after))
    if best:
        before_end, after_end = start + best[0], start + best[1]
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


def _agreement(before: str, after: str, start: int, ahead: int) -> tuple[int, int] | None:
    """Characters of both texts from ``start`` on in front of where they agree again.

    None if they do not within ``ahead`` characters, or if they may agree earlier in a longer piece.
    """
    before_tokens, after_tokens = _tokens(before, start, ahead), _tokens(after, start, ahead)
    runs = list(_runs(before_tokens))
    first_at = dict(zip(reversed(runs), range(len(runs) - 1, -1, -1), strict=True))
    best: tuple[int, int, int] | None = None
    for index, run in enumerate(_runs(after_tokens)):
        if best and index >= best[0]:
            break
        found = first_at.get(run)
        if found is not None and (best is None or found + index < best[0]):
            best = (found + index, found, index)
    if best is None or (
        ahead < _SLOT_AHEAD and best[0] > min(len(before_tokens), len(after_tokens)) - _AGREEING_TOKENS
    ):
        return None
    return sum(map(len, before_tokens[: best[1]])), sum(map(len, after_tokens[: best[2]]))


def _tokens(text: str, start: int, ahead: int) -> list[str]:
    """Words, blanks and punctuation from ``start`` on, without gaps; the ends of two texts match each other."""
    piece = text[start : start + ahead]
    tokens: list[str] = _TOKEN.findall(piece)
    if start + len(piece) >= len(text):
        return tokens + [_END] * _AGREEING_TOKENS
    # In a part of the text that is looked at, the last one may be cut.
    return tokens if ahead == _SLOT_AHEAD else tokens[:-1]


def _runs(tokens: list[str]) -> Iterator[tuple[str, ...]]:
    """The tokens that have to agree, from each position on."""
    return zip(*(tokens[index:] for index in range(_AGREEING_TOKENS)), strict=False)


_CHARS = 4000
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")
_SHARE = 0.5


def are_alike(one: str, other: str) -> bool:
    """Whether two texts share half of their length at both ends, or half of their words; numbers do not count."""
    if one == other:
        return True
    if not one.strip() or not other.strip():
        return False
    longer = max(len(one), len(other))
    front = common_length(one, other)
    rest = min(len(one), len(other)) - front
    back = common_length(one[-min(rest, _CHARS) :][::-1], other[-min(rest, _CHARS) :][::-1]) if rest else 0
    if front + back >= _SHARE * longer:
        return True
    words, others = (frozenset(_WORD.findall(text[:_CHARS].lower())) for text in (one, other))
    return bool(words and others) and len(words & others) >= _SHARE * len(words | others)


_ZERO_WIDTH = dict.fromkeys([0xAD, 0x180E, *range(0x200B, 0x2010), *range(0x2060, 0x2065), 0xFEFF])
_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_TRAILING = re.compile("(?<![^\\S\n])[^\\S\n]++(?=\n|$)")
_QUOTES = str.maketrans(
    {**dict.fromkeys("‘’‚‛′´`", "'"), **dict.fromkeys("“”„‟″«»", '"'), **dict.fromkeys("‐‑‒–—―−", "-"), "…": "..."}
)
_AROUND = 32
_MAX_CHARS = 65_536

_PIECES = re.compile(r"[\x00-\x7f]*[^\x00-\x7f]{0,256}")
"""Pieces for normalization, which takes quadratic time on long runs of combining marks. A piece ends before an ASCII
character, which no normalization form joins to its predecessor."""


def sameness(before: str, after: str, at: int) -> str:
    """The only respect in which two texts differ; empty if they differ in content.

    Args:
        before: The first text.
        after: The second, not equal to the first.
        at: Their first differing character.

    Returns:
        ``line_ends``, ``trailing``, ``zero_width``, ``blanks``, ``quotes``, ``unicode_form``, or an empty string.
    """
    if _is_plainly_other(before[at : at + 1], after[at : at + 1]):
        return ""
    before, after = _differing(before, after, at)
    return _blanks(before, after) or _form(before, after)


def _differing(before: str, after: str, at: int) -> tuple[str, str]:
    """The differing middle of two texts with some context, because combining marks belong to the character before."""
    rest = min(len(before), len(after)) - at
    one, other = before[len(before) - rest :][::-1], after[len(after) - rest :][::-1]
    behind = max(common_length(one, other) - _AROUND, 0)
    start = max(at - _AROUND, 0)
    return before[start : len(before) - behind], after[start : len(after) - behind]


def _is_plainly_other(one: str, other: str) -> bool:
    """Whether both are ASCII characters that none of the forms below equates with another character."""
    return all(each and each.isascii() and not each.isspace() and each not in "'\"-.`" for each in (one, other))


def _blanks(before: str, after: str) -> str:
    one, other = (_LINE_END.sub("\n", text) for text in (before, after))
    if one == other:
        return "line_ends"
    if before.translate(_ZERO_WIDTH) == after.translate(_ZERO_WIDTH):
        return "zero_width"
    if _TRAILING.sub("", one).rstrip() == _TRAILING.sub("", other).rstrip():
        return "trailing"
    return "blanks" if _without_blanks(before) == _without_blanks(after) else ""


def _form(before: str, after: str) -> str:
    if (before.isascii() and after.isascii()) or max(len(before), len(after)) > _MAX_CHARS:
        return ""
    one, other = (_normal("NFC", text) for text in (before, after))
    if one == other:
        return "unicode_form"
    if one.translate(_QUOTES) == other.translate(_QUOTES):
        return "quotes"
    one, other = (_without_blanks(_normal("NFKC", text.translate(_QUOTES))) for text in (before, after))
    return "unicode_form" if one == other else ""


def _without_blanks(text: str) -> str:
    return "".join(text.translate(_ZERO_WIDTH).split())


def _normal(form: str, text: str) -> str:
    if text.isascii():
        return text
    return "".join(unicodedata.normalize(form, piece) for piece in _PIECES.findall(text))  # type: ignore[arg-type]
