"""``pattern``: replaces or removes the matches of the operator's own patterns."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext
from gateway.canon.rules.text_replacements import TextReplacement, exchanged, text_edits, then
from gateway.canon.texts import Text, texts
from gateway.config.canon_settings import OwnPatternSettings
from gateway.config.operator_patterns import OwnRegex, TooSlow
from gateway.core.canonical import RuleName

_MAX_ROUNDS = 8
"""Maximum number of passes over a text, because replacements may create new matches. A text that still changes after
the last pass is left alone, because the rule would not be idempotent."""


class OwnPatterns:
    """Applies the patterns in their order, each to the messages of its roles.

    Args:
        patterns: The patterns.
    """

    name: ClassVar[RuleName] = RuleName.PATTERN

    def __init__(self, patterns: Sequence[OwnPatternSettings]) -> None:
        self._by_role: dict[str, list[_Pattern]] = {}
        for settings in patterns:
            pattern = _Pattern(settings)
            for role in dict.fromkeys(settings.roles):
                self._by_role.setdefault(role, []).append(pattern)

    def detect(self, fields: Fields, given: RuleContext) -> Detected:  # noqa: ARG002 - independent of the context
        """See ``Rule``."""
        if not self._by_role:
            return NOTHING
        edits = [
            edit
            for text in texts(fields, self._by_role)
            for edit in _all_or_none(text, self._by_role.get(text.role, ()))
        ]
        return Detected(edits) if edits else NOTHING


class _Pattern:
    """One compiled pattern."""

    def __init__(self, settings: OwnPatternSettings) -> None:
        self._name = settings.name
        self._regex = OwnRegex(settings.regex)
        self._after = settings.replacement
        # Matches within the pattern's own replacement are not replaced again.
        self._own = {(found.start, found.end) for found in self._regex.find(self._after)}

    def pieces(self, text: str) -> list[TextReplacement]:
        """The replacements of all non-empty matches.

        Raises:
            TooSlow: the search takes too long.
        """
        return [
            TextReplacement(start, end, self._after, self._name)
            for start, end, _ in self._regex.find(text)
            if text[start:end] not in ("", self._after) and not self._is_own(text, start, end)
        ]

    def _is_own(self, text: str, start: int, end: int) -> bool:
        return any(
            end - start == last - first and first <= start and text.startswith(self._after, start - first)
            for first, last in self._own
        )


def _all_or_none(text: Text, patterns: Sequence[_Pattern]) -> Sequence[Edit]:
    """The edits of a text; none if the search takes too long."""
    try:
        return list(_edits(text, patterns))
    except TooSlow:
        return ()


def _edits(text: Text, patterns: Sequence[_Pattern]) -> Iterator[Edit]:
    pieces: list[TextReplacement] = []
    now = text.text
    for _ in range(_MAX_ROUNDS):
        before = now
        for pattern in patterns:
            found = pattern.pieces(now)
            if found:
                pieces = then(text.text, pieces, found) if pieces else found
                now = exchanged(now, found)
        if now == before:
            changed = [piece for piece in pieces if text.text[piece.start : piece.end] != piece.after]
            # One pattern may undo the change of another one.
            if now != text.text:
                yield from text_edits(RuleName.PATTERN, text, changed, _summary)
            return


def _summary(name: str) -> str:
    if name == RuleName.PATTERN.value:
        return "Matches of your own patterns are replaced or removed."
    return f"Matches of your own pattern `{name}` are replaced or removed."
