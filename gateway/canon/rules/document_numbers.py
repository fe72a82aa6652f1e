"""Numbers documents anew in their new order, and lets citations follow, for the rule ``document-order``.

A citation belongs to the documents of its turn: the messages from the answer in front of the documents to the answer
behind them. What stands behind that answer speaks of the numbers that the answer used, which are the new ones. Where a
text may refer to a document in a way that cannot be followed, nothing is numbered anew.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from gateway.canon.code_spans import touched
from gateway.canon.document_places import DocumentPlace, PlacedDocument
from gateway.canon.lexicon import alternatives, entries
from gateway.canon.rule import Fields
from gateway.canon.rules.text_replacements import TextReplacement
from gateway.canon.texts import LONGEST_TEXT, Text, messages, texts
from gateway.config.operator_patterns import OwnRegex, TooSlow
from gateway.core.json_edit import Path

_NOUNS = frozenset(entries("documents", "data")) | {"no", "nos", "nr", "number", "numbers", "one"}
_LEAST_STEM = 5
_STEMS = frozenset(noun[: max(len(noun) - 1, _LEAST_STEM)] for noun in _NOUNS if len(noun) >= _LEAST_STEM)
"""Nouns without an ending: in many languages it changes with the case."""

_NOUN_ENDINGS = entries("documents", "data_unspaced")
_INTEGER = re.compile(r"(?<!\d)\d{1,3}(?!\d)")
_WORD_IN_FRONT = re.compile(r"([^\W\d_]+)[\s#:.]{0,3}$")
_WORD_BEHIND = re.compile(r"(?:[.)]|-?[^\W\d_]{1,3})?\s([^\W\d_]+)")
_LIST_IN_FRONT = re.compile(r"(?:\d{1,3}\s?(?:[,;/&–—-]|[^\W\d_]{1,4})\s?){1,8}$")
_WORD_CHARS = 32
"""Characters around a number in which the word that it belongs to is looked for."""


def _words(section: str) -> str:
    """A part of a regular expression that matches the words of a list, with any ending or none for an asterisk."""
    return alternatives(each for word in entries("documents", section) for each in {word, word.removesuffix("*")})


_POSITIONS = re.compile(
    rf"(?<!\w)(?:{_words('positions')})(?!\w)"
    rf"|{_words('positions_unspaced')}",
    re.IGNORECASE,
)
_BESIDE_NOUNS = re.compile(
    rf"(?<!\w)(?:(?:{_words('position_words')})\s(?P<behind>\w{{1,32}})"
    r"|(?P<before>\w{1,32})\s(?:one|two|three|four|five|six|seven|eight|nine|ten))(?!\w)",
    re.IGNORECASE,
)

_RANGE = re.compile(
    rf"\s*(?:[-‐‑‒–—~～〜…]|\.{{2,3}}|{alternatives(entries('documents', 'range_words'))})\s*", re.IGNORECASE
)
_LONGEST_RANGE = 12

_CIRCLED = re.compile("[\u2460-\u249b\u2776-\u2793]")
_LONGER_NUMBER = re.compile(r"\d+(?:[.,:/-]\d+)+")
_LIST_MARK = re.compile(r"(?:^|\n)[ \t]*$")
_COUNTS = re.compile(
    # A word behind it, a unit, or a character of a script without blanks that makes no ordinal of it.
    r"[ \u00a0-][^\W\d_]{4}|\s?[%‰°€$£¥₽₸]|(?![番号號번호つ件])[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]"
)
_COMPOUND = re.compile(r"-([^\W\d_]+)")
_AMOUNT_IN_FRONT = re.compile(r"[€$£¥₽₸]\s?$")

_MOST_DIGITS = 3
_MOST_NUMBERS = 5000
"""A text with more numbers that documents have is left alone: the words around each are looked at."""

_MOST_RUNS = 8
"""A turn with more runs of numbered documents is left alone: each of its texts is searched for each run."""


class NumberedRun(NamedTuple):
    """A run of numbered documents.

    Attributes:
        place: Its declaration.
        text: The text that holds it.
        documents: The documents as they were sent.
        order: Their indexes in the order in which they get the same numbers anew; as they are: the run stays.
    """

    place: DocumentPlace
    text: Text
    documents: Sequence[PlacedDocument]
    order: Sequence[int]

    @property
    def is_changed(self) -> bool:
        """Whether it gets another order."""
        return any(index != place for place, index in enumerate(self.order))


Placed = tuple[Path, TextReplacement]
"""A replacement with the path of its text."""


def renumbered(fields: Fields, runs: Sequence[NumberedRun]) -> Iterator[tuple[NumberedRun, Sequence[Placed]]]:
    """The runs that are numbered anew, with all replacements that this takes.

    A turn in which something cannot be followed stays as it is, and others do not: the front of a conversation must not
    depend on what comes later.

    Args:
        fields: The request's fields.
        runs: All runs of numbered documents in the prompt.
    """
    if not any(run.is_changed for run in runs):
        return
    turn_of = _turns(fields)
    texts_of: dict[Hashable, list[Text]] = {}
    for text in texts(fields):
        texts_of.setdefault(turn_of(text), []).append(text)
    by_turn: dict[Hashable, list[NumberedRun]] = {}
    for run in runs:
        by_turn.setdefault(turn_of(run.text), []).append(run)
    for turn, there in by_turn.items():
        if len(there) > _MOST_RUNS or not _are_distinct(there):
            continue
        try:
            found = [(run, list(_replacements(texts_of[turn], run))) for run in there if run.is_changed]
        except (TooSlow, _NotFollowed):
            continue
        yield from found


def _are_distinct(runs: Sequence[NumberedRun]) -> bool:
    """Whether no number names two documents of a turn."""
    numbers = [run.text.text[slice(*document.number)] for run in runs for document in run.documents if document.number]
    return len(set(numbers)) == len(numbers)


def _replacements(turn: Sequence[Text], run: NumberedRun) -> Iterator[Placed]:
    """The run in its new order, and its citations in the texts of its turn.

    Raises:
        _NotFollowed: numbers do not count up by one, or something cannot be followed.
        TooSlow: a search takes too long.
    """
    numbers = _numbers(run)
    yield run.text.path, _in_order(run, numbers)
    yield from _citations(turn, run, {numbers[index]: number for index, number in zip(run.order, numbers, strict=True)})


class _NotFollowed(Exception):
    """Something may refer to a document in a way that cannot be followed."""


def _turns(fields: Fields) -> Callable[[Text], Hashable]:
    """Gives the turn of a text: the number of answers in front of it. Each prompt of a completion is one of its own."""
    answers = list(accumulate(message.get("role") == "assistant" for message in messages(fields)))
    return lambda text: answers[text.message] if text.message < len(answers) else text.path


def _numbers(run: NumberedRun) -> list[int]:
    """The documents' numbers.

    Raises:
        _NotFollowed: they do not count up by one.
    """
    numbers: list[int] = []
    for document in run.documents:
        number = -1 if document.number is None else _integer(run.text.text[slice(*document.number)])
        if number < 0 or (numbers and number != numbers[-1] + 1):
            raise _NotFollowed
        numbers.append(number)
    return numbers


def _in_order(run: NumberedRun, numbers: Sequence[int]) -> TextReplacement:
    """The run in its new order, with the numbers in their old one."""
    text = run.text.text
    pieces: list[str] = []
    done = run.documents[0].start
    for place, index, number in zip(run.documents, run.order, numbers, strict=True):
        document = run.documents[index]
        start, end = document.number or (document.start, document.start)
        pieces += (text[done : place.start], text[document.start : start], str(number), text[end : document.end])
        done = place.end
    return TextReplacement(run.documents[0].start, done, "".join(pieces), "renumbered")


def _citations(turn: Sequence[Text], run: NumberedRun, news: Mapping[int, int]) -> Iterator[Placed]:
    """The citations of a run with their new numbers.

    Raises:
        _NotFollowed: a document cites one, or something else may refer to one.
        TooSlow: a search takes too long.
    """
    stays = run.place.settings.in_front == "stay"
    is_behind = False
    for text in turn:
        is_own = text.path == run.text.path
        is_behind = is_behind or is_own
        if text.role == "assistant" or (stays and not is_behind):
            continue
        if len(text.text) > LONGEST_TEXT or run.place.citation is None:
            raise _NotFollowed
        documents = run.documents if is_own else ()
        first = documents[0].start if documents and stays else 0
        for piece in _followed(text.text, documents, first, run.place.citation, news):
            yield text.path, piece


def _followed(
    text: str, documents: Sequence[PlacedDocument], first: int, regex: OwnRegex, news: Mapping[int, int]
) -> list[TextReplacement]:
    """The citations in a text that get other numbers.

    Args:
        text: The text.
        documents: The documents in it.
        first: Offset from which on it is searched.
        regex: Finds citations.
        news: New numbers by old ones.
    """
    starts = [document.start for document in documents]
    pieces: list[TextReplacement] = []
    cited: set[int] = set()
    last_end = 0
    for found in regex.find(text):
        start, end = found.value
        number = _integer(text[start:end])
        between, last_end = text[last_end : found.start][: _LONGEST_RANGE + 1], found.end
        if _RANGE.fullmatch(between) and found.start >= first and _holder(documents, starts, start) is None:
            # The documents between the two have other numbers in the new order.
            raise _NotFollowed
        if found.start < first or number not in news:
            continue
        holder = _holder(documents, starts, start)
        if holder is None:
            cited.add(start)
            if news[number] != number:
                pieces.append(TextReplacement(start, end, str(news[number]), "citation"))
        elif holder.number != (start, end):
            # A reference of the document's own looks like a citation of one of these documents.
            raise _NotFollowed
    if any(at not in cited and _holder(documents, starts, at) is None for at in _mentions(text, first, news)):
        raise _NotFollowed
    return pieces


def _mentions(text: str, first: int, news: Mapping[int, int]) -> Iterator[int]:
    """Offsets of what may name a document by its position."""
    longer = [each.span() for each in _LONGER_NUMBER.finditer(text, first) if _is_no_list(each[0], news)]
    for count, integer in enumerate(each for each in _INTEGER.finditer(text, first) if int(each[0]) in news):
        at, end = integer.span()
        front, behind = text[max(at - _WORD_CHARS, 0) : at], text[end : end + _WORD_CHARS]
        is_named = _names_document(front, behind) or not (touched(longer, at, end) or _counts(front, behind))
        if is_named or count > _MOST_NUMBERS:
            yield at
    for found in _CIRCLED.finditer(text, first):
        yield found.start()
    for position in _POSITIONS.finditer(text, first):
        yield position.start()
    for position in _BESIDE_NOUNS.finditer(text, first):
        if _is_noun(position["behind"] or position["before"]):
            yield position.start()


def _is_no_list(written: str, news: Mapping[int, int]) -> bool:
    """Whether numbers with signs between them are a date, a time or a decimal, and not a list of documents."""
    numbers = re.findall(r"\d+", written)
    return "." in written or ":" in written or any(_integer(number) not in news for number in numbers)


def _counts(front: str, behind: str) -> bool:
    """Whether a number between some text counts something, or is that of an item of a list."""
    compound = _COMPOUND.match(behind)
    if front[-1:].isalpha() or front.endswith(("^", "_", "-")) or (compound is not None and _is_noun(compound[1])):
        return False
    if _LIST_MARK.search(front) and behind.startswith((". ", ") ")):
        return True
    return _COUNTS.match(behind) is not None or _AMOUNT_IN_FRONT.search(front) is not None


def _integer(written: str) -> int:
    """A number without leading zeros; -1 for anything else."""
    is_plain = written.isascii() and written.isdigit() and len(written) <= _MOST_DIGITS
    return int(written) if is_plain and written == str(int(written)) else -1


def _holder(documents: Sequence[PlacedDocument], starts: Sequence[int], offset: int) -> PlacedDocument | None:
    """The document in which an offset lies."""
    at = bisect_right(starts, offset) - 1
    return documents[at] if at >= 0 and offset < documents[at].end else None


def _names_document(front: str, behind: str) -> bool:
    """Whether a number between some text may be that of a document."""
    front = _LIST_IN_FRONT.sub("", front)
    if front.rstrip(" ").endswith(("[", "(", "#")) or front.rstrip(" :.").endswith(_NOUN_ENDINGS):
        return True
    words = _WORD_IN_FRONT.search(front), _WORD_BEHIND.match(behind)
    return any(word is not None and _is_noun(word[1]) for word in words)


def _is_noun(word: str) -> bool:
    """Whether a word is one for a document, in any case."""
    lower = word.lower()
    if lower in _NOUNS or lower.endswith(_NOUN_ENDINGS):
        return True
    return any(lower[:length] in _STEMS for length in range(_LEAST_STEM, len(lower) + 1))
