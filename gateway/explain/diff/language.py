"""Recognizes that the instructions of an application come in another language, by scripts and frequent words.

Only the leading messages are looked at: the messages of users are their own. What counts is the part in which two
prompts differ. It has to begin as instructions do in both, and to be in two languages without doubt. A passage in
another language behind instructions that stay, a quotation or a document is no change of language.
"""

import re
import unicodedata
from collections import Counter
from functools import cache, lru_cache
from itertools import chain

from gateway.canon.lexicon import alternatives, by_part, value_of
from gateway.canon.rules.dynamic.quoted_data import QuotedData, holds_data, speaks_of_data
from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import beginning, text_cause
from gateway.explain.diff.slot import common_length
from gateway.explain.prompt_text import PromptPair, PromptText

_CHARACTERS = 4000
"""Of each side so much is read."""

_LEAST_CHARACTERS = 24
_LEAST_WORDS = 12
_LEAST_LETTERS = 20
_LEAST_HITS = 5
_LEAST_SHARE = 0.2
_LEAST_LEAD = 1.5
"""So many times as many frequent words as of the second language."""

_LEAST_SCRIPT_SHARE = 0.6
_LEAST_KANA_SHARE = 0.1
_LEAST_OWN_SHARE = 0.05
_LEAST_RARE_LETTERS = 2
_BEGINNING_CHARACTERS = 300
_LEAST_FRONT_HITS = 3
_WORD_CHARACTERS = 64

_WORD = re.compile(r"[^\W\d_]+")
_QUOTED = re.compile(
    r"```[^`]*+```|\"[^\"\n]*+\"|“[^“”\n]*+”|„[^„“”\n]*+[“”]|«[^«»\n]*+»|「[^「」\n]*+」|^>.*$", re.MULTILINE
)
_OPENERS = (("“", "”"), ("„", "“"), ("«", "»"), ("「", "」"))

_TAG = re.compile(r"<(/?)([A-Za-z][\w:.\-]{0,60}+)(?:\s[^<>\n]{0,300})?(?<!/)>")
_PLAIN_LINE = "x"
_SENTENCE_START = r"(?:\A|[.!?:;…|)\n–—])[\s#*_>\-•\"“„«¿(\[]*+"
_VERB_LAST = frozenset({"tr", "kk", "fa", "ko", "ja"})
"""Languages whose sentences end with what is to be done."""

_VALUES = frozenset({Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID})
"""Reasons that come first, where their value is the first difference."""

_NAMES = {str(code): str(name) for code, name in value_of("languages", "names").items()}
_SCRIPTS = {code: frozenset(names) for code, names in by_part("languages", "scripts").items()}
_LETTERS, _RARE_LETTERS, _FOREIGN_LETTERS = (
    {code: frozenset(letters) for code, letters in by_part("languages", section).items()}
    for section in ("letters", "rare_letters", "foreign_letters")
)
_LANGUAGES: dict[str, tuple[str, ...]] = {}
for _code, _words in by_part("languages", "words").items():
    for _each in _words:
        _LANGUAGES[_each] = (*_LANGUAGES.get(_each, ()), _code)


def language_difference(given: PromptPair, index: int) -> Difference | None:
    """The difference if the leading messages from an index on come in another language; None if they do not, or it is
    not certain."""
    before, after = _leading_text(given.before, index), _leading_text(given.after, index)
    at = common_length(before, after)
    rest = min(len(before), len(after)) - at
    if rest < _LEAST_CHARACTERS:
        return None
    back = common_length(before[len(before) - rest :][::-1], after[len(after) - rest :][::-1])
    start = _word_start(before, at)
    # A short difference, such as a time, has no language.
    if min(len(before), len(after)) - back - start < _LEAST_LETTERS or _is_inside(before[:at]):
        return None
    one, other = _instructions(before[start : len(before) - back]), _instructions(after[start : len(after) - back])
    if not one or not other or one == other or _is_in_data(before[:start]):
        return None
    if text_cause(before, after, is_template=True).reason in _VALUES:
        # Where a changing value comes first, equal instructions behind it would be lost as well.
        return None
    path = f"messages[{index}].content"
    said = f"the instructions come in {_NAMES[other]} instead of {_NAMES[one]}{given.between}; suggested scope: {other}"
    return Difference(
        Reason.LANGUAGE_CHANGED,
        "instructions",
        path,
        index,
        given.after.messages[index].role,
        1,
        1,
        beginning(given.before.messages[index].text),
        beginning(given.after.messages[index].text),
        f"{path}: {said}",
    )


def _leading_text(text: PromptText, index: int) -> str:
    return "\n\n".join(message.text for message in text.leading[index:])


def _word_start(text: str, at: int) -> int:
    """Where the word begins in which, or at whose end, a position lies."""
    start = at
    while start > max(at - _WORD_CHARACTERS, 0) and text[start - 1].isalnum():
        start -= 1
    return start


def _is_inside(front: str) -> bool:
    """Whether a difference behind this text is a part only: in a quotation, in code, or behind instructions."""
    line = front[front.rfind("\n") + 1 :]
    if line.count('"') % 2 or line.startswith(">") or front.count("```") % 2:
        return True
    if any(line.rfind(opening) > line.rfind(closing) for opening, closing in _OPENERS):
        return True
    hits = Counter[str]()
    for word in _WORD.finditer(front[:_CHARACTERS].lower()):
        for code in _LANGUAGES.get(word[0], ()):
            hits[code] += 1
            if hits[code] >= _LEAST_FRONT_HITS:
                return True
    return bool(_instructions(front))


def _is_in_data(front: str) -> bool:
    """Whether what follows a text is data in a tag, or behind a label such as ``Memory of the user:``."""
    opened = Counter[str]()
    for tag in _TAG.finditer(front):
        if holds_data(tag[2]):
            opened[tag[2].lower()] += -1 if tag[1] else 1
    if any(count > 0 for count in opened.values()):
        return True
    line = front.rfind("\n") + 1
    label = front[line:].rstrip(" \t*_")
    if label.endswith((":", "：")) and speaks_of_data(label):
        return True
    return QuotedData(front[:line] + _PLAIN_LINE).hold(line, line + len(_PLAIN_LINE))


def _instructions(text: str) -> str:
    """The language of a text that begins as instructions do; empty for another text, or if it is not certain."""
    language = language_of(text)
    if not language:
        return ""
    begun = text[:_BEGINNING_CHARACTERS].lower()
    return language if _beginnings(language).search(begun) else ""


def language_of(text: str) -> str:
    """The language of a text without what it quotes, as a code such as ``de``; empty if it is not certain."""
    text = _QUOTED.sub(" ", text[:_CHARACTERS]).lower()
    words = _WORD.findall(text)
    scripts = Counter[str](latin=sum(map(len, words))) if text.isascii() else _scripts(text)
    letters = scripts.total()
    if letters < _LEAST_LETTERS:
        return ""
    for code, names in _SCRIPTS.items():
        if sum(scripts[name] for name in names) >= _LEAST_SCRIPT_SHARE * letters:
            kana = scripts["hiragana"] + scripts["katakana"]
            if code != "ja" or kana >= _LEAST_KANA_SHARE * letters:
                return code
    if code := _by_letters(text, letters):
        return code
    hits = Counter(chain.from_iterable(filter(None, map(_LANGUAGES.get, words)))).most_common(2)
    if len(words) < _LEAST_WORDS or not hits:
        return ""
    code, count = hits[0]
    second = hits[1][1] if len(hits) > 1 else 0
    is_certain = count >= max(_LEAST_HITS, _LEAST_SHARE * len(words)) and count >= _LEAST_LEAD * second
    return code if is_certain else ""


def _by_letters(text: str, letters: int) -> str:
    """The language that alone has some of a text's letters, such as Kazakh among those in Cyrillic; empty for none."""
    if text.isascii():
        return ""
    counts = Counter(text)
    for code, own in _LETTERS.items():
        if (
            sum(map(counts.__getitem__, own)) >= _LEAST_OWN_SHARE * letters
            and sum(map(counts.__getitem__, _RARE_LETTERS[code])) >= _LEAST_RARE_LETTERS
            and counts.keys().isdisjoint(_FOREIGN_LETTERS[code])
        ):
            return code
    return ""


@cache
def _beginnings(language: str) -> re.Pattern[str]:
    """Finds with which words instructions begin in a language, at the beginning of a sentence if it says that first.

    In the middle of one, letters and other documents ask for answers, too.
    """
    words = alternatives(by_part("languages", "beginnings")[language])
    is_spaced = language not in {"ja", "zh", "th", "ko"}
    if language in _VERB_LAST:
        return re.compile(rf"\b(?:{words})\b" if is_spaced else words)
    return re.compile(rf"{_SENTENCE_START}(?:{words})\b" if is_spaced else words)


def _scripts(text: str) -> Counter[str]:
    """How many letters of each script a text has."""
    scripts = Counter[str]()
    for character, count in Counter(text).items():
        if character.isalpha():
            scripts["latin" if character.isascii() else _script(character)] += count
    return scripts


@lru_cache(8192)
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ", 1)[0].lower()
