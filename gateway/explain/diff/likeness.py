"""Whether two texts are versions of one another."""

import re

from gateway.explain.diff.slot import common_length

_CHARS = 4000
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")
_SHARE = 0.5


def are_alike(one: str, other: str) -> bool:
    """Whether most of the words of two texts, or of their ends, are the same; numbers do not count."""
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
