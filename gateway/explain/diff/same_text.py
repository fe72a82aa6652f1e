"""Whether two texts are equal except for blanks, line ends, quotes or Unicode forms, or versions of each other."""

import re
import unicodedata

from gateway.explain.diff.slot import common_length

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
