"""The formats of logs: finds the one of a log by its first lines, and turns its lines into requests."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.evaluation.logs.access_log import read_access, takes_access
from gateway.evaluation.logs.batch_log import read_batch, takes_batch
from gateway.evaluation.logs.body_log import read_bodies, takes_bodies
from gateway.evaluation.logs.entry_fields import loaded
from gateway.evaluation.logs.litellm_log import read_litellm, takes_litellm
from gateway.evaluation.logs.logged_request import LoggedRequest, UnreadableEntry
from gateway.evaluation.logs.vllm_log import VllmLines, takes_vllm

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
