"""Words in headings, tags and labels that indicate data, and words that indicate instructions or context."""

import re

from gateway.canon.lexicon import entries

DATA_WORDS = frozenset(entries("documents", "data"))
"""Text under a heading or in a tag with one of these words is data."""

DATA_WITHOUT_BLANKS = entries("documents", "data_unspaced")

FINE_WORDS = frozenset(entries("documents", "fine"))
"""A tag that consists of such words does not contain data."""

INLINE_TAGS = frozenset(entries("documents", "inline_tags"))
"""HTML tags that are ignored."""

_FINE_ELSEWHERE = frozenset(entries("documents", "fine_headings"))
_FINE_WITHOUT_BLANKS = entries("documents", "fine_headings_unspaced")

CONTEXT_LABELS = frozenset(entries("documents", "context_labels"))
"""Labels of lines that may be next to the current date."""

CONTEXT_WITHOUT_BLANKS = entries("documents", "context_labels_unspaced")

NAME_PIECES = re.compile(r"[^\W\d_]+?(?=[A-Z][a-z])|[^\W\d_]+")


def speaks_of_data(words: str) -> bool:
    """Whether a heading indicates data."""
    low = words.lower()
    return any(each in DATA_WORDS for each in re.findall(r"[^\W\d_]+", low)) or (
        not low.isascii() and any(each in low for each in DATA_WITHOUT_BLANKS)
    )


def speaks_of_now(words: str) -> bool:
    """Whether the current date may be under a heading."""
    low = words.lower()
    return any(
        each in FINE_WORDS or each in _FINE_ELSEWHERE or each in CONTEXT_LABELS
        for each in re.findall(r"[^\W\d_]+", low)
    ) or (not low.isascii() and any(each in low for each in _FINE_WITHOUT_BLANKS + CONTEXT_WITHOUT_BLANKS))


def holds_data(tag: str) -> bool:
    """Whether the content of a tag is data or unknown."""
    if tag.lower() in INLINE_TAGS:
        return False
    pieces = [each.lower() for each in NAME_PIECES.findall(tag)]
    return any(each in DATA_WORDS for each in pieces) or not any(each in FINE_WORDS for each in pieces)
