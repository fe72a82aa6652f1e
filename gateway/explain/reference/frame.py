"""The frame of a prompt: the text that an application puts before the text of its users.

These are the leading messages and the tools. A prompt with neither uses the beginning of its first message instead,
which may contain a template; such frames need a higher similarity to match.

Varying values are masked (``Wording``): a text is split into segments (lines; sentences of long lines); case and blanks
are folded, and numbers, dates, ids and addresses become ``0``. Masked segments are cached, because leading messages
repeat most of their lines even if one line holds the time.
"""

import re
import unicodedata
from itertools import chain, repeat

import numpy as np
import xxhash

from gateway.core.bounded_cache import BoundedCache
from gateway.explain.prompt_text import LEADING_ROLES, Message, PromptText

_SAMPLED_MARKS = 48
_SAMPLED_TOOLS = 16
_LEAST_SHARED = 0.4
_LEAST_SHARED_OPENING = 0.6
_LEAST_MARKS_OPENING = 8
_OPENING_CHARACTERS = 2_000
_OPENING_SKELETON_CHARACTERS = 400
_OPENING_LETTERS = 16
_FRAME_BEGINNING = 140
_OPENING_BEGINNING = 72

_WIDE = "\u2e80"
"""First of the characters that count as a word each (East Asian scripts)."""

_HEADLINE_WORDS = 5
_HEADLINE_CHARACTERS = 28
_FRAME_BYTES = 3_000


class Frames:
    """Frames of prompts, with a cache: most requests of an application begin alike."""

    def __init__(self, max_bytes: int) -> None:
        """Cache frames and segments of about ``max_bytes`` in all."""
        self._wording = Wording(max_bytes // 2)
        self._frames: BoundedCache[tuple[object, ...], Frame] = BoundedCache(max_weight=max_bytes // 2)

    def of(self, text: PromptText) -> "Frame":
        """The frame of a prompt."""
        messages = frame_messages(text)
        key = messages, tuple([tool.name for tool in text.tools])
        if not any(key):
            return Frame(text, self._wording)
        frame = self._frames.get(key)
        if frame is None:
            frame = Frame(text, self._wording)
            self._frames.put(key, frame, weight=_FRAME_BYTES + 4 * sum(len(each.text) for each in messages))
        return frame

    def forget_texts(self) -> None:
        """Drop what is remembered of prompts; it is worked out again when needed."""
        self._frames.clear()
        self._wording.forget_texts()


def frame_messages(text: PromptText) -> tuple[Message, ...]:
    """The messages of a prompt's frame: the leading ones, else the system messages behind others."""
    return text.leading or tuple([each for each in text.messages if each.role in LEADING_ROLES])


class Frame:
    """The frame of one prompt.

    Attributes:
        is_opening: Whether it is the beginning of the first message, for lack of leading messages and tools.
        skeleton: Hash of the masked frame: equal for frames that differ only in numbers, dates, ids, case, blanks and
            the order of tools; None for a prompt without text.
    """

    __slots__ = ("_beginnings", "_features", "_segments", "_tools", "is_opening", "skeleton")

    def __init__(self, text: PromptText, wording: "Wording") -> None:
        self._tools = sorted({tool.name for tool in text.tools})
        messages = frame_messages(text)
        self.is_opening = not messages and not self._tools
        self._features: frozenset[int] | None = None
        self._beginnings: tuple[int, ...] | None = None
        if self.is_opening:
            opening = text.messages[0].text[:_OPENING_CHARACTERS] if text.messages else ""
            self._segments = wording.segments(opening)
            self.skeleton = _opening_skeleton(opening, self._segments)
        else:
            self._segments, self.skeleton = self._read(messages, wording)

    def _read(self, messages: tuple[Message, ...], wording: "Wording") -> "tuple[list[Segment], int]":
        segments: list[Segment] = []
        parts = list(self._tools)
        for message in messages:
            own = wording.segments(message.text)
            parts.append(f"\0{message.role}\0{_joined(own)}")
            segments += own
        return segments, digest("\n".join(parts))

    @property
    def features(self) -> frozenset[int]:
        """Hashes of sampled word runs, lines and tool names, by which similar frames are found."""
        if self._features is None:
            # The marks of each segment are in order but for the last one, so little is left to sort.
            marks = dict.fromkeys(sorted(chain.from_iterable([segment.marks for segment in self._segments])))
            tools = {digest("tool\0" + name) for name in self._tools}
            self._features = frozenset(list(marks)[:_SAMPLED_MARKS] + sorted(tools)[:_SAMPLED_TOOLS])
        return self._features

    @property
    def beginnings(self) -> tuple[int, ...]:
        """Hashes of the beginning of the masked frame; equal only for prompts that begin with the same many words."""
        if self._beginnings is None:
            self._beginnings = tuple(digest(f"{int(self.is_opening)}{each}") for each in self._begin())
        return self._beginnings

    def _begin(self) -> list[str]:
        characters = _OPENING_BEGINNING if self.is_opening else _FRAME_BEGINNING
        begin = ""
        for segment in self._segments:
            if len(begin) >= characters:
                break
            begin += f" {segment.masked}" if begin else segment.masked
        begin = begin[:characters]
        wide = 0 if begin.isascii() else sum(sign >= _WIDE for sign in begin)
        if 2 * wide > len(begin):
            characters //= 3
        found = [begin[:characters]] if len(begin) >= characters else []
        if self.is_opening and len(self._segments) > 1 and self._segments[0].is_line:
            headline = self._segments[0].masked
            if headline.count(" ") >= _HEADLINE_WORDS - 1 and len(headline) >= _HEADLINE_CHARACTERS:
                found.append("\n" + headline)
        return found


def similarity(one: frozenset[int], other: frozenset[int]) -> float:
    """Share of the features that both frames have (Dice coefficient), 0 to 1."""
    return 2 * len(one & other) / (len(one) + len(other)) if one and other else 0.0


def are_similar(shared: int, share: float, is_opening: bool) -> bool:
    """Whether two frames are variants of one: they have ``shared`` features in common, a ``share`` of all."""
    if is_opening:
        return share >= _LEAST_SHARED_OPENING and shared >= _LEAST_MARKS_OPENING
    return share >= _LEAST_SHARED


def _joined(segments: "list[Segment]") -> str:
    return " ".join(segment.masked for segment in segments)


def _opening_skeleton(opening: str, segments: "list[Segment]") -> int | None:
    """Skeleton of an opening; unmasked if it has few letters, because other numbers are then another question."""
    if not opening.strip():
        return None
    text = _joined(segments)[:_OPENING_SKELETON_CHARACTERS]
    if sum(map(str.isalpha, text)) < _OPENING_LETTERS:
        text = opening
    return digest("\0opening\0" + text)


_TEXT_CHARACTERS = 65_536
"""Only this much of a text is read: the rest does not make it another application."""

_LINE_CHARACTERS = 400
_SEGMENT_CHARACTERS = 2_000
_SENTENCE_ENDS = ". ", "! ", "? ", "; "
_WIDE_SENTENCE_ENDS = "。", "！", "？", "；"

_CALENDAR = frozenset(
    """
january february march april june july august september october november december
jan feb mar apr jun jul aug sept sep oct nov dec
monday tuesday wednesday thursday friday saturday sunday mon tue tues wed thu thur thurs fri sat sun
januar februar märz mai juni juli oktober dezember
montag dienstag mittwoch donnerstag freitag samstag sonnabend sonntag
janvier février mars avril juin juillet août septembre octobre novembre décembre
lundi mardi mercredi jeudi vendredi samedi dimanche
enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
lunes martes miércoles jueves viernes sábado domingo
gennaio febbraio aprile maggio giugno luglio settembre ottobre dicembre
lunedì martedì mercoledì giovedì venerdì sabato domenica
janeiro fevereiro março maio junho julho setembro outubro novembro dezembro segunda-feira terça-feira quarta-feira
quinta-feira sexta-feira januari februari maart mei augustus maandag dinsdag woensdag donderdag vrijdag zaterdag zondag
stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia
poniedziałek wtorek środa czwartek piątek sobota niedziela
января февраля марта апреля мая июня июля августа сентября октября ноября декабря
понедельник вторник среда четверг пятница суббота воскресенье
ocak şubat mart nisan mayıs haziran temmuz ağustos eylül ekim kasım aralık
pazartesi salı çarşamba perşembe cuma cumartesi pazar
am pm utc gmt cet cest est edt pst pdt may
""".split()
)
"""Words of dates and times of day. An ambiguous word is masked in every text alike, so comparisons stay valid."""

_LETTERS = re.compile(r"[^\W\d_]++(?:-feira)?")
_CALENDAR_WORD = re.compile(rf"\b(?:{'|'.join(sorted(_CALENDAR, key=lambda word: (-len(word), word)))})\b")
_CALENDAR_SIGNS = re.compile(
    "星期[一二三四五六日天]|[上下]午|午[前後]|[月火水木金土日]曜日|[월화수목금토일]요일|오[전후]"
)
_ADDRESS = re.compile(r"(?<!\S)[^\s@]*+@\S*+")
_WITH_DIGITS = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b[^\W\d]*+\d\w*+"
)
_DIGIT = re.compile(r"\d")
_LONG_WORD_LETTERS = 20
_LONG_WORD = re.compile(rf"[^\W\d_]{{{_LONG_WORD_LETTERS},}}+")
_VARYING_RUN = re.compile(r"0(?:[\W_]{1,3}+0)++")
_PLAIN_SIGNS = str.maketrans(
    {**dict.fromkeys("“”„«»″", '"'), **dict.fromkeys("‘’‚′", "'"), **dict.fromkeys("‐‑–—−", "-")}
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad")
)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]++")
_ASCII = [chr(number) for number in range(128)]
_ASCII_LETTERS = bytes(ord(each) if each.isalpha() else 32 for each in _ASCII).ljust(256)
_ALIKE_LETTERS = bytes(97 if each.isalpha() else 32 for each in _ASCII).ljust(256)
_ALIKE_LONG_WORD = b"a" * _LONG_WORD_LETTERS
_ASCII_WORDS = str.maketrans({each: " " for each in _ASCII if not (each.isalnum() or each == "_")})
_SHINGLE_WORDS = 4
_MANY_WORDS = 100
_NORMALIZED_CHARS = 1000
_SEGMENT_BYTES = 220
_MARK_BYTES = 40


class Segment:
    """A line or a sentence, masked.

    Attributes:
        masked: The masked text.
        is_line: Whether it is a whole line.
    """

    __slots__ = ("_marks", "is_line", "masked")

    def __init__(self, text: str, is_line: bool) -> None:
        self.masked, words = _masked(text)
        self.is_line = is_line
        # A new text in which nothing varies is part of a new frame, which needs its marks.
        self._marks = None if words is None else self._sample(words)

    @property
    def marks(self) -> tuple[int, ...]:
        """Hashes of a sample of four-word runs: segments with common words share marks. Valid within a process.

        A frame uses no more than ``_SAMPLED_MARKS`` of all its segments.
        """
        if self._marks is None:
            self._marks = self._sample(_words(self.masked))
        return self._marks

    def _sample(self, words: list[str]) -> tuple[int, ...]:
        if not words:
            return ()
        sampled = _sampled(words, min(max(6, len(words) // 4), _SAMPLED_MARKS))
        return (*sampled, digest("\n" + self.masked)) if len(words) > 2 else tuple(sampled)


class Wording:
    """Splits and masks texts, with a cache of recent segments."""

    def __init__(self, max_bytes: int) -> None:
        """Cache segments of about ``max_bytes`` in all."""
        self._segments: BoundedCache[tuple[str, bool], Segment] = BoundedCache(max_weight=max_bytes)

    def segments(self, text: str) -> list[Segment]:
        """The segments of a text that are not empty after masking."""
        found = []
        for piece in _pieces(text[:_TEXT_CHARACTERS]):
            segment = self._segments.get(piece)
            if segment is None:
                segment = Segment(*piece)
                size = _SEGMENT_BYTES + 2 * len(piece[0]) + _MARK_BYTES * (8 + len(piece[0]) // 16)
                self._segments.put(piece, segment, weight=size)
            if segment.masked:
                found.append(segment)
        return found

    def forget_texts(self) -> None:
        """Drop the segments."""
        self._segments.clear()


def digest(text: str) -> int:
    """Hash of a text, the same in every process."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def _plain(start: int, text: str) -> str:
    """NFKC form of a piece of a text. In pieces, because a letter with very many marks takes quadratic time."""
    return unicodedata.normalize("NFKC", text[start : start + _NORMALIZED_CHARS])


def masked(text: str) -> str:
    """A text with folded case and blanks, and ``0`` for every number, date, id and address."""
    return _masked(text)[0]


def _masked(text: str) -> tuple[str, list[str] | None]:
    """``masked``, and its ``_words`` if they are known already: where nothing varies."""
    if not text.isascii():
        text = "".join(map(_plain, range(0, len(text), _NORMALIZED_CHARS), repeat(text))).translate(_PLAIN_SIGNS)
    text = text.lower()
    # All blanks but a space count as not printable.
    text = " ".join(text.split()) if "  " in text or not text.isprintable() else text.strip()
    # Most lines hold no varying value: cheap tests skip the expensive expressions.
    if "@" in text:
        text = _ADDRESS.sub("0", text)
    letters, has_long_word = _letter_runs(text)
    if not _CALENDAR.isdisjoint(letters):
        text = _CALENDAR_WORD.sub("0", text)
    if has_long_word:
        text = _LONG_WORD.sub("0", text)
    is_ascii = text.isascii()
    if not is_ascii:
        text = _CALENDAR_SIGNS.sub("0", text)
    if _has_digit(text):
        return _VARYING_RUN.sub("0", _WITH_DIGITS.sub("0", text)), None
    return text, letters if is_ascii and "_" not in text and "-feira" not in text else None


def _letter_runs(text: str) -> tuple[list[str], bool]:
    """All that ``_LETTERS`` finds in a text of lower case, and whether one of them is a long word."""
    if not text.isascii() or "-feira" in text:
        found = _LETTERS.findall(text)
        return found, max(map(len, found), default=0) >= _LONG_WORD_LETTERS
    # Translating is six times as fast as the expression.
    data = text.encode()
    return data.translate(_ASCII_LETTERS).decode().split(), _ALIKE_LONG_WORD in data.translate(_ALIKE_LETTERS)


def _sampled(words: list[str], count: int) -> list[int]:
    """The smallest hashes of runs of words, at most ``count`` different ones, ascending."""
    runs = zip(words, words[1:], words[2:], words[3:], strict=False)
    if len(words) < _MANY_WORDS:
        return sorted(set(map(hash, runs)) or {hash(tuple(words))})[:count]
    # An array is sorted ten times as fast as a list.
    hashes = np.fromiter(map(hash, runs), np.int64, len(words) - _SHINGLE_WORDS + 1)
    hashes.sort()
    found: list[int] = hashes[:count].tolist()
    if len(set(found)) < len(found):
        found = hashes[np.concatenate(([True], hashes[1:] != hashes[:-1]))][:count].tolist()
    return found


def _words(text: str) -> list[str]:
    """All that ``_WORD`` finds in a text, in order."""
    return text.translate(_ASCII_WORDS).split() if text.isascii() else _WORD.findall(text)


def _has_digit(text: str) -> bool:
    if not text.isascii():
        return _DIGIT.search(text) is not None
    return len(text.encode().translate(None, b"0123456789")) < len(text)


def _sentences(line: str) -> list[str]:
    # Replacing is ten times as fast as splitting with a regular expression.
    for end in _SENTENCE_ENDS if line.isascii() else (*_SENTENCE_ENDS, *_WIDE_SENTENCE_ENDS):
        if end[0] in line:
            line = line.replace(end, end + "\n")
    return line.split("\n")


def _pieces(text: str) -> list[tuple[str, bool]]:
    """The lines of a text, long ones in sentences; and whether each is a whole line."""
    pieces: list[tuple[str, bool]] = []
    for line in text.splitlines():
        if len(line) <= _LINE_CHARACTERS:
            pieces.append((line, True))
            continue
        for sentence in _sentences(line):
            if 0 < len(sentence) <= _SEGMENT_CHARACTERS:
                pieces.append((sentence, False))
            else:
                starts = range(0, len(sentence), _SEGMENT_CHARACTERS)
                pieces += [(sentence[at : at + _SEGMENT_CHARACTERS], False) for at in starts]
    return pieces
