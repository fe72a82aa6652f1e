"""Whether two texts are the same but for blanks, line ends, or the Unicode form of their characters."""

import re
import unicodedata

from gateway.explain.diff.slot import common_length

_ZERO_WIDTH = dict.fromkeys([0xAD, 0x180E, *range(0x200B, 0x2010), *range(0x2060, 0x2065), 0xFEFF])
_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
_TRAILING = re.compile("(?<![^\\S\n])[^\\S\n]++(?=\n|$)")
_QUOTES = str.maketrans(
    {**dict.fromkeys("‘’‚‛′´`", "'"), **dict.fromkeys("“”„‟″«»", '"'), **dict.fromkeys("‐‑‒–—―−", "-"), "…": "..."}
)
_AROUND = 32
_MOST_CHARS = 65_536
_PIECES = re.compile(r"[\x00-\x7f]*[^\x00-\x7f]{0,256}")
"""Normalizing sorts runs of combining marks, which takes their length squared: it is done piece by piece. A piece ends
in front of an ASCII character, which no form joins to what stands before it."""


def sameness(before: str, after: str, at: int) -> str:
    """In what alone two texts differ; empty if they differ in more.

    Args:
        before: The first text.
        after: The second, not equal to the first.
        at: Their first differing character.

    Returns:
        ``line_ends``, ``trailing``, ``zero_width``, ``blanks``, ``quotes``, ``unicode_form``, or nothing.
    """
    if _is_plainly_other(before[at : at + 1], after[at : at + 1]):
        return ""
    before, after = _differing(before, after, at)
    return _blanks(before, after) or _form(before, after)


def _differing(before: str, after: str, at: int) -> tuple[str, str]:
    """What two texts do not have in common at their ends, and a little around it: marks go with what is before them."""
    most = min(len(before), len(after)) - at
    one, other = before[len(before) - most :][::-1], after[len(after) - most :][::-1]
    behind = max(common_length(one, other) - _AROUND, 0)
    start = max(at - _AROUND, 0)
    return before[start : len(before) - behind], after[start : len(after) - behind]


def _is_plainly_other(one: str, other: str) -> bool:
    """Whether two characters are ASCII, there, and nothing that any of the forms below takes for another."""
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
    if (before.isascii() and after.isascii()) or max(len(before), len(after)) > _MOST_CHARS:
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
