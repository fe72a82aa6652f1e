"""Finds quotations, code, tables, examples, documents and other data, from which nothing may be moved.

Words in headings, tags and labels indicate data, or else instructions and context.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple

from gateway.canon.code_spans import fenced, touched
from gateway.canon.lexicon import alternatives, entries
from gateway.core.text_memo import text_memo

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


_LONGEST_KNOWN = 600
"""Longer lines are not cached, because they may be as long as a request."""

_TAG = re.compile(r"<(/?)([A-Za-z][\w:.\-]{0,60}+)([^<>\n]{0,300})>")
_MARKDOWN = re.compile(r"\s{0,3}(#{1,6})\s+(.{1,120})")
_FRAMED = re.compile(
    r"\s*(?:[=\-*_~]{2,}|\[|【|《|<<)\s*([^\W_].{0,80}?)\s*(?:[=\-*_~]{2,}|\]|】|》|>>)?\s*:?\s*[*_]*$"
)
_COLON = re.compile(r"\s*(?:\d{1,2}[.)]\s+)?(.{2,80}?)\s*[:：]\s*[*_]*\s*$")
_TITLE = re.compile(r"\s*([A-ZÀ-ÞА-Я][^.!?:;,|=]{2,59}(?:\s\d{1,8})?)\s*$")
_JSON = re.compile(r'\s*(?:[{\[]\s*$|[}\]]+[,;]?\s*$|"[^"\n]{1,80}"\s*:|[{\[]\s*["{\[].*[}\]],?\s*$)')
_LOG_BEGIN = re.compile(
    r"\s*(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*\]?\s+(?![A-Z]{1,5}\s*$|[ap]m\s*$|[+\-]\d|\()\S+|"
    r"\[?\d\d:\d\d:\d\d\S*\]?\s+\S+|[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d \S+ \S+)"
)
_LOG_LEVELS = entries("documents", "log_levels", as_written=True)
_LOG_LEVEL = re.compile(rf"(?<![\w])(?:{alternatives(_LOG_LEVELS)})(?=[\s\]:|])(?!: *$)")
_LOG_PAIRS = re.compile(r"(?<!\w)[a-z_]+=\S+\s+(?:[^\s=]+\s+)?[a-z_]+=\S+")
_TABLE_ROW = re.compile(r"\s*\||.*\|.*\|.*\|")
_TABBED_ROW = re.compile(r"[^\t\n]*\S\t+\S")
_LIST_ROW = re.compile(r"(?:[^,;\n]*+[,;](?!\s|\d{3}(?!\d)|$)){2}")
_KEY = re.compile(r"(\s*)(?:-\s+)?([\w.\-]+)\s*:\s*(?:#.*|[|>][+-]?)?$")
_TURN = re.compile(
    rf"\s*(?:[-*>]\s*)?[\[*_#]*(?P<who>{alternatives(entries('documents', 'speakers'))})\s?\d{{0,3}}[\]*_]*\s*[:：]",
    re.IGNORECASE,
)
_BACKTICKS = re.compile(r"(`+)(?!`)[^\n]{1,400}?(?<!`)\1(?!`)")
_PAIRS = dict(pair.split(" ") for pair in entries("documents", "quotation_marks"))
_APOSTROPHES = re.compile(r"(?<![\w'’])['‘](?=\S)[^\n]{1,300}?(?<=\S)['’](?!\w)")
_MAIL = re.compile(rf"\s*[*_]*(?:{alternatives(entries('documents', 'mail_headers'))})[*_]*\s?[:：]", re.IGNORECASE)
_ITEM = re.compile(r"\s*(?:[-*+•–]|\d{1,3}[.)]|[a-z][.)])\s")
_OPENS, _CLOSES = re.compile(r"(?:^\s*|[:=(]\s*)[{\[]\s*$"), re.compile(r"\s*[}\]]")
_WINDOW, _LINE_WINDOW = 2000, 400
_LONGEST_HEADING, _WORDS_OF_TITLE = 120, 6


_FRAME_LEVEL = 7
"""Level of headings without one: below all Markdown levels."""


class Line(Enum):
    """Kind of a line, regardless of its neighbours."""

    PLAIN = auto()
    BLANK = auto()
    DATA = auto()
    """A line of a quotation, a table, a log or JSON."""
    DATA_HEADING = auto()
    OTHER_HEADING = auto()
    TURN = auto()
    """A turn of an example dialogue, if another speaker follows."""
    MAIL = auto()
    """A header of an e-mail, if another one is next to it; the e-mail follows."""
    KEY = auto()
    """A key without a value: the indented lines below belong to it."""


_PLAIN = (Line.PLAIN, Line.BLANK)
"""Texts of such lines alone are no data."""


class LineKind(NamedTuple):
    """A line's kind.

    Attributes:
        line: The kind.
        depth: Level of a heading, indentation of a key.
        who: The speaker.
        is_of_now: Whether the current date may be under this heading.
        indent: Number of leading blanks.
        opens: Whether it ends with an opening bracket.
        closes: Whether it begins with a closing bracket.
    """

    line: Line
    depth: int = 0
    who: str = ""
    is_of_now: bool = False
    indent: int = 0
    opens: bool = False
    closes: bool = False


class QuotedData:
    """The ranges of a text from which nothing may be moved.

    Args:
        text: The text.
        tenant: Its tenant; caches are per tenant.
    """

    def __init__(self, text: str, tenant: str = "") -> None:
        self._text = text
        lines = text.split("\n")
        if max(map(len, lines)) <= _LONGEST_KNOWN:
            kinds = list(map(_known, lines, repeat(tenant)))
        else:
            kinds = [kind_of(line, tenant) for line in lines]
        of_lines: Iterable[tuple[int, int]] = ()
        strange: Iterable[tuple[int, int]] = ()
        if any(kind.line not in _PLAIN for kind in kinds):
            of_lines, strange = _lines(lines, kinds), _strange(lines, kinds)
        self._ranges = _joined([*fenced(text), *_tagged(text), *of_lines])
        self._strange = _joined(list(strange))

    def hold(self, start: int, end: int) -> bool:
        """Whether a piece is in one of the ranges."""
        return touched(self._ranges, start, end) or self._is_quoted(start, end)

    def is_strange(self, start: int, end: int) -> bool:
        """Whether a piece is under a heading that may or may not indicate data."""
        return touched(self._strange, start, end)

    def _is_quoted(self, start: int, end: int) -> bool:
        """Whether it is between quotation marks of its paragraph."""
        text = self._text
        left = max(text.rfind("\n\n", max(0, start - _WINDOW), start), start - _WINDOW, 0)
        right = text.find("\n\n", end, end + _WINDOW)
        right = end + _WINDOW if right < 0 else right
        before, behind = text[left:start], text[end:right]
        if '"' in before and before.count('"') % 2 and '"' in behind:
            return True
        for opening, closing in _PAIRS.items():
            at = before.rfind(opening)
            if (
                at >= 0
                and not any(before.find(each, at + 1) >= 0 for each in closing)
                and any(map(behind.__contains__, closing))
            ):
                return True
        begin = max(text.rfind("\n", left, start) + 1, start - _LINE_WINDOW, 0)
        behind_line = text.find("\n", end, end + _LINE_WINDOW)
        line = text[begin : end + _LINE_WINDOW if behind_line < 0 else behind_line]
        if "`" in line and any(
            begin + found.start() < start and end < begin + found.end() for found in _BACKTICKS.finditer(line)
        ):
            return True
        if "'" in line or "‘" in line:
            return any(
                begin + found.start() < start and end < begin + found.end() for found in _APOSTROPHES.finditer(line)
            )
        return False


def _joined(ranges: list[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def _tagged(text: str) -> Iterator[tuple[int, int]]:
    """Content of data tags; an unclosed tag on a line of its own extends to the text's end."""
    if "<" not in text:
        return
    opened: dict[str, list[tuple[int, bool]]] = {}
    for found in _TAG.finditer(text):
        name = found[2].lower()
        if not _is_data_tag(found[2]) or found[3].endswith("/"):
            continue
        if found[1]:
            if opened.get(name):
                yield opened[name].pop()[0], found.end()
        else:
            opened.setdefault(name, []).append((found.start(), _is_alone(text, *found.span())))
    yield from ((start, len(text)) for each in opened.values() for start, alone in each if alone)


@lru_cache(maxsize=1024)
def _is_data_tag(name: str) -> bool:
    return holds_data(name)


def _is_alone(text: str, start: int, end: int) -> bool:
    front = text[max(0, text.rfind("\n", 0, start) + 1) : start] if start else ""
    behind = text[end : end + 1]
    return not front.strip() and behind in ("", "\n", "\r")


def _lines(lines: Sequence[str], kinds: Sequence[LineKind]) -> Iterator[tuple[int, int]]:
    """Lines of data, including the lines below their headings and keys."""
    speakers = {kind.who for kind in kinds if kind.line is Line.TURN}
    at = 0
    heading = turn = False
    level, indent = 0, -1
    before = Line.BLANK
    opened: list[int] = []
    for line, kind in zip(lines, kinds, strict=True):
        end = at + len(line)
        if kind.line is Line.BLANK:
            turn = False
        else:
            if kind.line is Line.MAIL and before is Line.MAIL and not heading:
                heading, level = True, _FRAME_LEVEL
            elif kind.line in (Line.DATA_HEADING, Line.OTHER_HEADING) and (not heading or kind.depth <= level):
                heading, level = kind.line is Line.DATA_HEADING, kind.depth
            turn = turn or (kind.line is Line.TURN and len(speakers) > 1)
            if 0 <= indent < kind.indent:
                yield at, end
            else:
                indent = kind.depth if kind.line is Line.KEY else -1
            if heading or turn or kind.line is Line.DATA:
                yield at, end
            if kind.closes and opened and kind.line is Line.DATA:
                yield opened.pop(), end
            if kind.opens:
                opened.append(at)
        before = kind.line
        at = end + 1


def _strange(lines: Sequence[str], kinds: Sequence[LineKind]) -> Iterator[tuple[int, int]]:
    """Lines under a heading that may or may not indicate data."""
    at = 0
    strange = listed = titled = False
    opened = False
    for line, kind in zip(lines, kinds, strict=True):
        if kind.line in (Line.DATA_HEADING, Line.OTHER_HEADING):
            # A Markdown heading in the first line is the title of the whole text.
            strange = not kind.is_of_now and (titled or kind.depth >= _FRAME_LEVEL)
            listed, opened = False, kind.depth >= _FRAME_LEVEL
        elif strange and kind.line is not Line.BLANK:
            is_item = _ITEM.match(line) is not None
            if opened:
                listed, opened = is_item, False
            elif listed and not is_item and not line[:1].isspace():
                # To a heading such as "you may:" only the list below belongs.
                strange = False
        titled = titled or kind.line is not Line.BLANK
        if strange:
            yield at, at + len(line)
        at += len(line) + 1


def kind_of(line: str, tenant: str = "") -> LineKind:
    """Kind of a line, regardless of its neighbours; cached per tenant."""
    return _whole_kind_of(line, tenant) if len(line) > _LONGEST_KNOWN else _known(line, tenant)


def _whole_kind_of(line: str, _tenant: str) -> LineKind:
    return _kind_of(line)._replace(
        indent=len(line) - len(line.lstrip()),
        opens=line.rstrip().endswith(("{", "[")) and _OPENS.search(line) is not None,
        closes=_CLOSES.match(line) is not None,
    )


_known = text_memo(8192)(_whole_kind_of)


def _kind_of(line: str) -> LineKind:
    bare = line.strip()
    if not bare:
        return LineKind(Line.BLANK)
    if bare[0] == ">" or _is_row(line) or _JSON.match(line):
        return LineKind(Line.DATA)
    if turn := _TURN.match(line):
        return LineKind(Line.TURN, who=turn["who"].lower())
    if heading := _MARKDOWN.match(line):
        return _heading(heading[2], len(heading[1]))
    if len(bare) <= _LONGEST_HEADING:
        if (key := _KEY.match(line)) and key[2].islower() and holds_data(key[2]):
            return _heading(key[2], _FRAME_LEVEL) if speaks_of_data(key[2]) else LineKind(Line.KEY, len(key[1]))
        if framed := _FRAMED.match(line) or _COLON.match(line):
            return _heading(framed[1], _FRAME_LEVEL)
        title = _TITLE.match(line)
        if title and len(title[1].split()) <= _WORDS_OF_TITLE and speaks_of_data(title[1]):
            return _heading(title[1], _FRAME_LEVEL)
    if _MAIL.match(line):
        return LineKind(Line.MAIL)
    return LineKind(Line.DATA if _is_of_log(line) else Line.PLAIN)


def _is_row(line: str) -> bool:
    # An expression that finds nothing takes a hundred times as long as looking for a character that it needs.
    return bool(
        ("|" in line and _TABLE_ROW.match(line))
        or ("\t" in line and _TABBED_ROW.match(line))
        or (("," in line or ";" in line) and _LIST_ROW.match(line))
    )


def _is_of_log(line: str) -> bool:
    return bool(
        _LOG_BEGIN.match(line)
        or (any(map(line.__contains__, _LOG_LEVELS)) and _LOG_LEVEL.search(line))
        or (line.count("=") > 1 and _LOG_PAIRS.search(line))
    )


def _heading(words: str, level: int) -> LineKind:
    if speaks_of_data(words):
        return LineKind(Line.DATA_HEADING, level)
    return LineKind(Line.OTHER_HEADING, level, is_of_now=speaks_of_now(words))
