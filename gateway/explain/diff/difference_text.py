"""Makes a ``Difference`` of two texts: its place, the masked text around it, and a sentence.

Text is masked, so that no content of a prompt is shown.
"""

import unicodedata

from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import DiffCause
from gateway.explain.diff.slot import line_and_column

_AROUND = 40
_SLOT_CHARS = 80
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


def window(text: str, start: int, end: int, kind: str = "") -> str:
    """The text around a span, masked.

    Args:
        text: The whole text.
        start: Where the span begins.
        end: Where it ends.
        kind: Kind of the value in the span, shown in its place; empty to show it masked.
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


_PHRASES = {
    "line_ends": "other line ends",
    "trailing": "blanks at the end of a line or of the text",
    "zero_width": "characters without width",
    "blanks": "other blanks",
    "quotes": "other quotes or dashes",
    "unicode_form": "another Unicode form of the same characters",
    "json_spacing": "the same JSON with other blanks",
    "json_key_order": "the same JSON with its keys in another order",
    "words": "a user's own words",
    "conversation": "another conversation",
    "tool_calls_redumped": "the same arguments, written differently",
}


def text_difference(
    cause: DiffCause,
    reason: Reason,
    before: str,
    after: str,
    *,
    path: str,
    message: int | None = None,
    role: str = "",
    detail: str = "",
    between: str = "",
) -> Difference:
    """The difference of two texts at one place.

    Args:
        cause: The classified first difference.
        reason: The reason to report.
        before: The earlier text.
        after: The later.
        path: Path of the texts in the request body.
        message: Index of their message.
        role: Role of their message.
        detail: The code, if it is not the cause's.
        between: Client families of the prompts, as ``PromptPair.between``.
    """
    line, column = line_and_column(after, cause.at)
    code = detail or cause.detail
    return Difference(
        reason,
        code,
        path,
        message,
        role,
        line,
        column,
        window(before, cause.slot.start, cause.slot.before_end, cause.kind),
        window(after, cause.slot.start, cause.slot.after_end, cause.kind),
        f"{path}, line {line}: {_phrase(reason, code, cause.kind)}{between}",
    )


def _phrase(reason: Reason, detail: str, kind: str) -> str:
    if detail in _PHRASES:
        return _PHRASES[detail]
    if not kind:
        return "the text was changed"
    if reason is Reason.USER_DATA:
        return f"data of a user ({kind})"
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind} that changes"


def beginning(text: str) -> str:
    """The beginning of a text, masked."""
    return window(text, 0, min(len(text), 40))
