"""Log lines of vLLM with ``--enable-log-requests``.

Prompts are in lines of the level DEBUG: the body as JSON (``Request ID JSON body: {…}``), and text and token ids as the
engine got them (``Request ID details: prompt: '…', prompt_token_ids: […]``). Releases up to 0.10 have them in the line
of the level INFO (``Received request ID: prompt: '…', params: …, prompt_token_ids: […]``). Where a log has bodies, the
other lines are skipped: they repeat the same requests.
"""

import ast
import re
from array import array
from datetime import UTC, datetime
from typing import Any

from gateway.core.request import Endpoint
from gateway.evaluation.logs.entry_fields import loaded
from gateway.evaluation.logs.logged_request import LoggedRequest, OtherEntry, UnreadableEntry
from gateway.evaluation.logs.request_bodies import read_body

_TIME = re.compile(rb"\b(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_BODY = re.compile(rb"Request (\S+) JSON body: ")
_DETAILS = re.compile(rb"Request (\S+) details: prompt: ")
_RECEIVED = re.compile(rb"Received request (\S+?): prompt: ")
_WITHOUT_PROMPT = re.compile(rb"Received request (\S+?): params: ")
_MAX_TOKENS = re.compile(rb"\bmax_tokens=(\d+)")
_TEXT = re.compile(rb"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")|None""", re.DOTALL)
_IDS = re.compile(rb"prompt_token_ids: \[([\d, ]*)\]")

_LEAP_YEAR = 2024
_LATER_SECONDS = 86_400.0


def takes_vllm(line: bytes) -> bool:
    """Whether a line is one about a request."""
    return b"Received request " in line or (
        b"Request " in line and (b" JSON body: " in line or b" details: prompt: " in line)
    )


class VllmLines:
    """Reads the lines of one log.

    Args:
        latest: The log has no later times, Unix seconds: its lines do not say the year.
    """

    def __init__(self, latest: float) -> None:
        self._latest = latest
        self._has_bodies = False

    def read(self, line: bytes, place: str) -> LoggedRequest:
        """The request of one line.

        Raises:
            OtherEntry: It is another line of the log.
            UnreadableEntry: The line has no prompt, or only a part of it.
        """
        if (found := _BODY.search(line)) is not None:
            self._has_bodies = True
            body = loaded(line[found.end() :].decode("utf-8", "replace").strip())
            if not isinstance(body, dict):
                raise UnreadableEntry("a body that is not complete JSON (--max-log-len cuts it off)")
            endpoint, fields = read_body(body)
            return LoggedRequest(place, endpoint, fields, self._time(line))
        found = _DETAILS.search(line) or _RECEIVED.search(line)
        if found is None:
            if _WITHOUT_PROMPT.search(line):
                raise UnreadableEntry(
                    "a vLLM line without the prompt (start it with VLLM_LOGGING_LEVEL=DEBUG and --enable-log-requests)"
                )
            raise OtherEntry
        if self._has_bodies:
            raise OtherEntry
        return self._prompt(line, found.end(), place)

    def _prompt(self, line: bytes, start: int, place: str) -> LoggedRequest:
        text = _TEXT.match(line, start)
        if text is None:
            raise UnreadableEntry("a prompt that does not end in its line (--max-log-len cuts it off)")
        prompt: str | None = ast.literal_eval(text[0].decode("utf-8", "replace"))
        ids = _IDS.search(line, text.end())
        numbers = [int(each) for each in ids[1].split(b",")] if ids and ids[1].strip() else []
        if prompt is None and not numbers:
            raise UnreadableEntry("a vLLM line without the prompt")
        packed = _packed(numbers) if numbers else None
        body: dict[str, Any] = {"model": "any", "prompt": prompt if prompt is not None else numbers}
        if (most := _MAX_TOKENS.search(line, text.end())) is not None:
            body["max_tokens"] = int(most[1])
        return LoggedRequest(place, Endpoint.COMPLETIONS, body, self._time(line), token_ids=packed)

    def _time(self, line: bytes) -> float | None:
        found = _TIME.search(line[:200])
        if found is None:
            return None
        month, day, hour, minute, second = (int(each) for each in found.groups())
        year = datetime.fromtimestamp(self._latest + _LATER_SECONDS, UTC).year
        for tried in (year, year - 1, _LEAP_YEAR):
            try:
                at = datetime(tried, month, day, hour, minute, second, tzinfo=UTC).timestamp()
            except ValueError:
                continue
            if at <= self._latest + _LATER_SECONDS:
                return at
        return None


def _packed(numbers: list[int]) -> bytes:
    try:
        ids = array("I", numbers)
    except OverflowError:
        raise UnreadableEntry("token ids that are no 32-bit numbers") from None
    if ids.itemsize != 4:
        raise UnreadableEntry("token ids cannot be packed on this machine")
    return ids.tobytes()
