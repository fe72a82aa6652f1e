"""Names of persons behind a label: ``Full name: Anna Maier``, ``"customer_name": "Anna Maier"``, ``ФИО: …``.

Found: up to six words with a capital first letter, with particles such as ``van`` between them; two to four characters
of Chinese, Japanese or Korean. Behind labels of other things as well (``name``, ``client``) it takes two words.
A quoted value behind a label of names only may be in lower case.

Not found: names without a label, and labels without a colon, equals sign or tag.
"""

import re
from collections.abc import Iterator

from gateway.canon.lexicon import by_part, entries
from gateway.canon.pii.kinds.labelled_text import Place, ValueLabels
from gateway.canon.pii.kinds.text_view import Span, TextView

_BY_LANGUAGE = by_part("personal_data", "name_labels")
_OF_ANYTHING = frozenset(_BY_LANGUAGE["anything"])
_LABELS = ValueLabels(label for labels in _BY_LANGUAGE.values() for label in labels)
_PARTICLES = frozenset(entries("personal_data", "name_particles"))
_NO_NAMES = frozenset(entries("personal_data", "no_names"))
_MAX_WORDS = 6
_LONGEST_SHORT_FORM = len("Mrs.")
_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|['’\-](?=[^\W\d_])){0,39}+\.?(?![\w@])")
_GAP = re.compile(r",? ")
_KEY = re.compile(r" ?[:=(/\\]")
"""Behind a word that is the next label, or code."""
_EASTERN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,4}(?![\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])")


def find(view: TextView) -> Iterator[Span]:
    """Spans of names."""
    return _LABELS.spans(view, _end)


def _end(text: str, place: Place) -> int:
    """Where the name ends that begins at a place; 0 if none does."""
    eastern = _EASTERN.match(text, place.start)
    if eastern:
        return eastern.end()
    position, end, names = place.start, 0, 0
    lower = bool(place.quote) and place.label not in _OF_ANYTHING
    for _ in range(_MAX_WORDS):
        word = _WORD.match(text, position)
        if not word or _KEY.match(text, word.end()):
            break
        written = word[0]
        if written.rstrip(".").lower() in _NO_NAMES:
            break
        if not written[0].islower() or lower:
            names += 1
            end = word.end()
        elif written not in _PARTICLES:
            break
        if written.endswith(".") and len(written) > _LONGEST_SHORT_FORM:
            end -= end == word.end()  # the full stop of the sentence
            break
        gap = _GAP.match(text, word.end())
        if not gap:
            break
        position = gap.end()
    if names < (2 if place.label in _OF_ANYTHING else 1):
        return 0
    return end
