"""Makes a recording of what a client sent that may be published.

Kept is what the API and the gateway see of the form: names of headers, members, tools and their arguments, kinds of
blocks, cache marks, tags and line breaks. Every word of prose becomes another word, the same one everywhere, so that
equal beginnings stay equal. Ids, paths and times become constants, long texts are cut, and an answer that comes back in
a later request becomes ``$ANSWER0`` and so on, by the number of its request.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from tests.agents.recorder import Exchange

_TEXT_BYTES, _DESCRIPTION_BYTES = 2000, 80
"""Where texts of messages, and those in tools, are cut."""

_WORDS = (
    "able above across after again along always amber answer apple april arrow autumn bakery basket before below "
    "better between bottle branch bread bridge bright brook butter candle carpet castle cedar cherry circle cloud "
    "coast copper corner cotton cousin cradle dance dinner doctor early earth eight evening every family feather "
    "field figure finger forest four friend garden gentle glass golden green harbor harvest heavy honey island "
    "jacket juice kettle kitchen ladder lantern large later lemon letter little lunch maple market meadow metal "
    "middle minute mirror morning mountain narrow nature needle never north ocean office often olive orange "
    "orchard other over paper pencil pepper picture plain planet plate pocket potato quick quiet rabbit rain "
    "ready river road rocket round saddle salt school second seven shadow shelf silver simple sister slow small "
    "snow song south spoon spring square stone story street sugar summer table tea thread three tiger timber "
    "today tower train tree turtle under uncle valley velvet village violet wagon water weather whale wheat white "
    "window winter winner wood yellow young "
).split()

_IDS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{12,64}\b|(?<=msg_)[0-9a-f]{12,}|(?<=ses_)\w+"
)
_PATH = re.compile(r"(?<![\w:/.~<-])(?:/[\w.+-]+){2,}")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.\w+)+")
_PROSE = re.compile(rf"{_PATH.pattern}|{_MAIL.pattern}|</?[a-z][a-z_-]*>|[A-Za-z]+|\d+")
_FOLDER = "/home/user/project"
_BILLING = "x-anthropic-billing-header:"
_TEXT_MEMBERS = {"text", "content", "description", "title", "instructions", "system", "thinking", "examples", "default"}
_MEMBERS_OF_TOOLS = {"tools", "functions", "parameters", "input_schema"}
_LEFT_OUT = {"host", "connection", "content-length", "accept-encoding"}
_EARLIEST_TIME = 10**8
"""Numbers from here on are times."""


def recording(client: str, turns: Sequence[Sequence[Exchange]], main: Sequence[Exchange]) -> Mapping[str, Any]:
    """The requests of a client's turns, without what is personal or others' prose.

    Args:
        client: Its package and version.
        turns: What it sent in each.
        main: Those whose answers it printed.
    """
    made = _Recording()
    requests = []
    for number, turn in enumerate(turns, 1):
        for each in turn:
            headers = {name: made.header(name, value) for name, value in each.headers if name not in _LEFT_OUT}
            is_main = any(each is other for other in main)
            body = made.value(json.loads(each.body), "", in_tools=False)
            requests.append(
                {
                    "turn": number,
                    "main": is_main,
                    "method": each.method,
                    "path": each.path,
                    "headers": headers,
                    "body": body,
                }
            )
            made.answers.setdefault(each.text, f"$ANSWER{len(requests) - 1}")
    return {"client": client, "requests": requests}


class _Recording:
    """Replaces the same thing by the same thing.

    Attributes:
        answers: What stands for the text of an answer.
    """

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self._ids: dict[str, str] = {}

    def header(self, name: str, value: str) -> str:
        if name == "x-stainless-runtime-version":
            return "v20.0.0"
        if name == "user-agent":
            return re.sub(r"\(\w+ \d[\w.]*; (\w+)\)", r"(Linux 0.0.0; \1)", value)
        return self._plain(value)

    def value(self, value: Any, member: str, *, in_tools: bool) -> Any:
        if isinstance(value, dict):
            return {
                self._plain(name): self.value(each, name, in_tools=in_tools or name in _MEMBERS_OF_TOOLS)
                for name, each in value.items()
            }
        if isinstance(value, list):
            return [self.value(each, member, in_tools=in_tools) for each in value]
        if isinstance(value, str):
            if value in self.answers:
                return self.answers[value]
            if member in _TEXT_MEMBERS:
                return _prose(value, _DESCRIPTION_BYTES if in_tools else _TEXT_BYTES)
            return self._plain(value)
        if type(value) in (int, float) and value >= _EARLIEST_TIME and not in_tools:
            return _EARLIEST_TIME
        return value

    def _plain(self, text: str) -> str:
        """A text that is no prose: a name, an id, or JSON with such texts."""
        if text.startswith("{"):
            made = self.value(json.loads(text), "", in_tools=False)
            return json.dumps(made, separators=(",", ":"))
        return _PATH.sub(_FOLDER, _IDS.sub(self._id, text))

    def _id(self, found: re.Match[str]) -> str:
        """Another id of the same form."""
        old = found[0]
        if old not in self._ids:
            number = f"{len(self._ids) + 1:x}"
            digits = re.sub(r"\w", "0", old)
            self._ids[old] = digits[: -len(number)] + number
        return self._ids[old]


def _prose(text: str, most: int) -> str:
    if text.startswith(_BILLING):
        return re.sub(r"(cc_version=[\d.]+\.)\w+", r"\1abc", text)
    return _PROSE.sub(_word, text[:most])


def _word(found: re.Match[str]) -> str:
    old = found[0]
    if old.startswith("<"):
        return old
    if old.startswith("/"):
        return _FOLDER
    if "@" in old:
        return "user@example.invalid"
    if old[0].isdigit():
        return "1" * len(old)
    new = _WORDS[crc32(old.lower().encode()) % len(_WORDS)]
    return new.capitalize() if old[0].isupper() else new
