"""How text is split before its pieces become tokens, for models that ship a bare file of ranks.

A file of ranks says which bytes make a token, not where a token may begin. That is a regular expression in the model's
code. Another expression gives other tokens for some texts, such as long numbers, and prefixes are not found then.
"""

from pathlib import Path

from gateway.core.errors import TokenizerUnavailable

FILE_NAME = "split_pattern.txt"
"""A file beside the ranks with the model's own expression."""

DEFAULT = "cl100k_base"
"""Used where neither the configuration nor a file says otherwise."""

_MAX_CHARACTERS = 10_000
"""Longest expression of a file; those of published models have less than a thousand characters."""

_R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = "|".join(
    (
        r"'(?i:[sdmt]|ll|ve|re)",
        r"[^\r\n\p{L}\p{N}]?+\p{L}++",
        r"\p{N}{1,3}+",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
        r"\s++$",
        r"\s*[\r\n]",
        r"\s+(?!\S)",
        r"\s",
    )
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

PATTERNS = {
    "cl100k_base": _CL100K,
    "gpt2": _R50K,
    "o200k_base": _O200K,
    "o200k_harmony": _O200K,
    "p50k_base": _R50K,
    "p50k_edit": _R50K,
    "r50k_base": _R50K,
}
"""By the name of the encoding, so that none has to be downloaded for it. Source: tiktoken_ext/openai_public.py."""


def split_pattern(ranks: Path, encoding: str) -> str:
    """The expression for a file of ranks.

    Args:
        ranks: The file.
        encoding: The encoding named in the configuration; empty for the file beside the ranks, or else the default.

    Raises:
        TokenizerUnavailable: There is no such encoding, or the file beside the ranks holds no expression.
    """
    if encoding:
        if encoding not in PATTERNS:
            raise TokenizerUnavailable(f"no split pattern is known of {encoding}; there is {', '.join(PATTERNS)}")
        return PATTERNS[encoding]
    own = ranks.parent / FILE_NAME
    if not own.is_file():
        return PATTERNS[DEFAULT]
    with own.open(encoding="utf-8") as file:
        # Blanks may be part of it; an editor's last line end is not.
        pattern = file.read(_MAX_CHARACTERS + 1).removesuffix("\n")
    if not pattern or len(pattern) > _MAX_CHARACTERS:
        raise TokenizerUnavailable(f"{own} has to hold a regular expression of at most {_MAX_CHARACTERS} characters")
    return pattern
