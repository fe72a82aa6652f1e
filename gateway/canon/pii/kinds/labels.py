"""Labels in front of values: which one stands directly before an offset."""

from collections.abc import Iterable, Mapping

from gateway.canon.pii.kinds.text_view import TextView

GAP = " \t.:#=*_(-\"'：。№°)«“"
"""Characters between a label and its value."""

_SPACED = str.maketrans("_-", "  ")
_WINDOW = 64
_MAX_LINKS = 3


class Labels:
    """Labels by name of what they label.

    Args:
        labels: The labels in lower case, by name. In the text they may have underscores or dashes instead of spaces.
        links: Words that may stand between a label and its value, at most three.
        joined: Whether labels may also be written in one word, such as ``orderId``.
    """

    def __init__(self, labels: Mapping[str, Iterable[str]], links: Iterable[str] = (), *, joined: bool = False) -> None:
        self._name_of: dict[str, str] = {}
        for name, each in labels.items():
            for label in each:
                spaced = label.translate(_SPACED).rstrip(GAP)
                self._name_of[spaced] = name
                if joined:
                    self._name_of[spaced.replace(" ", "")] = name
        self._ends = tuple(sorted(self._name_of, key=len, reverse=True))
        self._links = tuple(sorted(links, key=len, reverse=True))

    def before(self, view: TextView, start: int) -> str | None:
        """Name of what the label directly before an offset labels; None without one."""
        text = view.before(start, _WINDOW).translate(_SPACED).rstrip(GAP)
        for _ in range(_MAX_LINKS + 1):
            if not text or not text[-1].isalpha():
                return None
            if text.endswith(self._ends) and (label := _ending(text, self._ends)):
                return self._name_of[label]
            if not text.endswith(self._links) or not (link := _ending(text, self._links)):
                return None
            text = text[: -len(link)].rstrip(GAP)
        return None


def _ending(text: str, words: tuple[str, ...]) -> str:
    """The longest of some words, longest first, at the end of a text and not inside a longer word; empty if none is."""
    for word in words:
        if text.endswith(word) and not text[: -len(word)][-1:].isalpha():
            return word
    return ""
