"""Differences as they are told: the place, the masked text around it, and a sentence."""

from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import DiffCause
from gateway.explain.diff.masking import window
from gateway.explain.diff.slot import line_and_column

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
        cause: What was found in the texts.
        reason: What it is classified as.
        before: The earlier text.
        after: The later.
        path: Where they stand.
        message: Number of their message.
        role: Role of their message.
        detail: The code, if it is not the cause's.
        between: Whose prompts are compared, as ``Given.between``.
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
