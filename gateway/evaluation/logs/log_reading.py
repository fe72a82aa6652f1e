"""Reads the requests of log files in the order of their times, and counts what cannot be read.

The format of a log is found by its first lines.
"""

import heapq
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import orjson

from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.logs.access_log import read_access, takes_access
from gateway.evaluation.logs.body_log import read_batch, read_bodies, takes_batch, takes_bodies
from gateway.evaluation.logs.entry_fields import loaded
from gateway.evaluation.logs.har_log import entries_of, read_entry
from gateway.evaluation.logs.litellm_log import read_litellm, takes_litellm
from gateway.evaluation.logs.log_file import LogFile, LogLine
from gateway.evaluation.logs.logged_request import LoggedRequest, OtherEntry, UnreadableEntry
from gateway.evaluation.logs.vllm_log import VllmLines, takes_vllm

_FIRST_LINES = 64
"""Lines by which a format is found."""

_FIRST_BYTES = 4096
_HAR_BYTES = 512 * 1024 * 1024
_PLACES = 3
"""Places named for each reason."""

_REASONS = 50
_MAX_FILES = 200
_WAITING_REQUESTS = 512
"""Requests held back to bring them into order: access logs are written when answers end."""

_WAITING_BYTES = 64 * 1024 * 1024
"""Most bytes of all files that are held back."""

_UNKNOWN_STEP = 1.0
"""Seconds between the requests of a log without times."""
ReadLine = Callable[[bytes, str], LoggedRequest]
"""Turns a line, and its place, into a request; raises ``OtherEntry`` or ``UnreadableEntry``."""

HAR = "HAR"
VLLM = "vLLM log"

_HAR_BEGIN = re.compile(rb"\s*\{\s*\"log\"\s*:\s*\{")


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A format of JSON lines.

    Attributes:
        name: Its name, for the report.
        takes: Whether an entry is of this format.
        read: The request of an entry.
    """

    name: str
    takes: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any], str], LoggedRequest]


_JSON_FORMATS = (
    JsonFormat("OpenAI Batch", takes_batch, read_batch),
    JsonFormat("litellm log", takes_litellm, read_litellm),
    JsonFormat("JSON access log", takes_access, read_access),
    JsonFormat("request bodies", takes_bodies, read_bodies),
)
"""In the order in which they are tried: entries of the others hold bodies, too."""


def is_har(beginning: bytes) -> bool:
    """Whether a file that begins so is a HAR document."""
    return _HAR_BEGIN.match(beginning) is not None


def find_format(lines: Sequence[bytes], latest: float) -> tuple[str, ReadLine] | None:
    """The format of a log, and what reads its lines; None if it is none that is known.

    Args:
        lines: Its first lines.
        latest: The log has no later times, Unix seconds.
    """
    for line in lines:
        if takes_vllm(line):
            return VLLM, VllmLines(latest).read
    entries = [entry for line in lines if isinstance(entry := loaded(line.decode("utf-8", "replace")), dict)]
    for entry in entries:
        for each in _JSON_FORMATS:
            if each.takes(entry):
                return each.name, JsonLines(each).read
    return None


class JsonLines:
    """Reads the lines of a log of one JSON format; lines of another one are read as such.

    Args:
        usual: The log's format.
    """

    def __init__(self, usual: JsonFormat) -> None:
        self._formats = [usual, *(each for each in _JSON_FORMATS if each is not usual)]

    def read(self, line: bytes, place: str) -> LoggedRequest:
        """The request of one line.

        Raises:
            OtherEntry: It is an entry of the log, and no request for text.
            UnreadableEntry: It is no JSON, or no request.
        """
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:
            entry = loaded(line.decode("utf-8", "replace"))
        if isinstance(entry, str):
            raise UnreadableEntry("not valid JSON")
        if not isinstance(entry, dict):
            raise UnreadableEntry("JSON that is no object")
        for each in self._formats:
            if each.takes(entry):
                return each.read(entry, place)
        return self._formats[0].read(entry, place)


@dataclass(slots=True)
class Unreadable:
    """Entries that could not be read for one reason.

    Attributes:
        count: How many.
        places: The first of them, as ``file:line``.
    """

    count: int = 0
    places: list[str] = field(default_factory=list)


@dataclass(slots=True)
class ReadCounts:
    """What was read.

    Attributes:
        formats: Format of each file, by its name.
        requests: Requests read.
        others: Entries that are no requests for text.
        unreadable: Entries that could not be read, by reason.
        without_time: Requests of logs that have no times.
    """

    formats: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    others: int = 0
    unreadable: dict[str, Unreadable] = field(default_factory=dict)
    without_time: int = 0

    @property
    def unreadable_entries(self) -> int:
        """Entries that could not be read."""
        return sum(each.count for each in self.unreadable.values())

    def refuse(self, reason: str, place: str) -> None:
        """Count an entry that could not be read."""
        if reason not in self.unreadable and len(self.unreadable) >= _REASONS:
            reason = "other reasons"
        found = self.unreadable.setdefault(reason, Unreadable())
        found.count += 1
        if len(found.places) < _PLACES:
            found.places.append(place)


class LogReading:
    """The requests of log files.

    Args:
        paths: The files; ``-`` is standard input.

    Attributes:
        counts: What was read so far.
        size: Bytes of all files as they are stored; 0 if unknown.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        if len(paths) > _MAX_FILES:
            raise BadInput(
                f"{len(paths)} log files: more than {_MAX_FILES}, the most that are read at once (join some)"
            )
        if list(paths).count("-") > 1:
            raise BadInput("standard input (-) can be read only once")
        self.counts = ReadCounts()
        self._open = ExitStack()
        self._files: list[LogFile] = []
        try:
            for path in paths:
                self._files.append(self._open.enter_context(LogFile(path)))
        except BaseException:
            self._open.close()
            raise
        known = [each.size for each in self._files]
        self.size = sum(known) if all(known) else 0

    @property
    def read_bytes(self) -> int:
        """Bytes read so far, as they are stored."""
        return sum(each.read_bytes for each in self._files)

    def requests(self) -> Iterator[tuple[float, LoggedRequest]]:
        """Every request with its time, oldest first: of a log without times, a second after the one before.

        Raises:
            BadInput: A file is no log that can be read, or no request is in it.
        """
        with self._open:
            streams = [self._timed(file) for file in self._files]
            yield from _merged(streams)
            if not self.counts.requests:
                raise self._nothing()

    def _timed(self, file: LogFile) -> Iterator[tuple[float, LoggedRequest]]:
        """The requests of one file, in the order of their times as far as that takes holding few of them back."""
        latest = time.time() if file.changed_at is None else file.changed_at
        waiting: list[tuple[float, int, LoggedRequest, int]] = []
        held = 0
        previous = latest - 1.0
        for number, (request, size) in enumerate(self._entries(file, latest)):
            self.counts.requests += 1
            if request.at is None:
                self.counts.without_time += 1
            previous = previous + _UNKNOWN_STEP if request.at is None else request.at
            heapq.heappush(waiting, (previous, number, request, size))
            held += size
            while len(waiting) > _WAITING_REQUESTS or (held > _WAITING_BYTES // len(self._files) and waiting):
                at, _, first, freed = heapq.heappop(waiting)
                held -= freed
                yield at, first
        while waiting:
            at, _, first, _ = heapq.heappop(waiting)
            yield at, first

    def _entries(self, file: LogFile, latest: float) -> Iterator[tuple[LoggedRequest, int]]:
        if is_har(file.peek(_FIRST_BYTES)):
            self.counts.formats[file.name] = HAR
            for number, entry in enumerate(entries_of(file.document(_HAR_BYTES), file.name), 1):
                place = f"{file.name}: entry {number}"
                try:
                    yield read_entry(entry, place), _WAITING_BYTES // _WAITING_REQUESTS
                except OtherEntry:
                    self.counts.others += 1
                except UnreadableEntry as reason:
                    self.counts.refuse(str(reason), place)
            return
        lines = file.lines()
        first = list(islice(lines, _FIRST_LINES))
        found = find_format([line.text for line in first], latest)
        if found is None:
            raise BadInput(
                f"{file.name}: no log of requests: its first {len(first)} lines are neither JSON with a request body "
                "nor lines that vLLM writes with --enable-log-requests"
            )
        self.counts.formats[file.name], read = found
        yield from self._lines(file.name, chain(first, lines), read)

    def _lines(self, name: str, lines: Iterator[LogLine], read: ReadLine) -> Iterator[tuple[LoggedRequest, int]]:
        for line in lines:
            place = f"{name}:{line.number}"
            if line.is_too_long:
                self.counts.refuse("a line that is too long", place)
                continue
            try:
                request = read(line.text, place)
            except OtherEntry:
                self.counts.others += 1
            except UnreadableEntry as reason:
                self.counts.refuse(str(reason), place)
            except (RecursionError, ValueError, SyntaxError, MemoryError) as error:
                self.counts.refuse(f"a line that cannot be read ({type(error).__name__})", place)
            else:
                yield request, len(line.text)

    def _nothing(self) -> BadInput:
        names = ", ".join(self.counts.formats)
        if not self.counts.unreadable:
            return BadInput(f"{names}: no requests for text in it")
        reason, most = max(self.counts.unreadable.items(), key=lambda each: each[1].count)
        hint = (
            '; log them, in nginx with `"request_body":"$request_body"` in a log_format with escape=json'
            if "access log" in reason
            else ""
        )
        total = self.counts.unreadable_entries
        return BadInput(
            f"{names}: no request in it can be read: {most.count:,} of {total:,} entries are {reason}, "
            f"such as {most.places[0]}{hint}"
        )


def _merged(streams: Sequence[Iterator[tuple[float, LoggedRequest]]]) -> Iterator[tuple[float, LoggedRequest]]:
    if len(streams) == 1:
        yield from streams[0]
        return
    yield from heapq.merge(*streams, key=lambda each: each[0])
