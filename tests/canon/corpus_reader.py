"""The corpus of prompts: one request body a file, and beside each what is expected of canonicalization.

Folders are kinds of applications, and file names begin with the language. ``NAME.json`` is the body,
``NAME.expect.json`` the expectation: see ``FormBlocks``.
"""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
_EXPECTED = ".expect.json"
LEADING = ("system", "developer")
INPUT_ROLES = ("user", "tool")


@dataclass(frozen=True)
class Prompt:
    """A prompt and what is expected.

    Attributes:
        name: Folder and name.
        body: The request.
        now: When it is sent, Unix seconds.
        about: What it is there for.
        moved: Texts that go from the leading messages into the block behind the last message; empty: nothing may move.
        kept: Texts that stay in the message and text they stand in.
        rules: Rules that find something, and at least how many changes; all others find nothing. `dynamic-suffix` finds
            as many as `moved` has.
        again: How the leading messages differ in the next request: old and new text.
        becomes: Texts that stand in the prompt when all rules were applied.
        gone: Texts that do not.
        lost: Texts that the operator's own patterns take out.
        settings: Of canonicalization, where they are not the default.
        endpoint: Path of the API.
    """

    name: str
    body: Mapping[str, Any]
    now: float
    about: str
    moved: tuple[str, ...]
    kept: tuple[str, ...]
    rules: Mapping[str, int] = field(default_factory=dict)
    again: tuple[tuple[str, str], ...] = ()
    becomes: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    endpoint: str = "/v1/chat/completions"

    @property
    def language(self) -> str:
        return Path(self.name).name[:2]

    def next(self) -> dict[str, Any]:
        """The same request sent again, with other values in the leading messages."""
        body = copy.deepcopy(dict(self.body))
        for number in range(len(leading(body))):
            body["messages"][number] = self._renewed(body["messages"][number])
        return body

    def _renewed(self, value: Any) -> Any:
        if isinstance(value, str):
            for old, new in self.again:
                value = value.replace(old, new)
            return value
        if isinstance(value, list):
            return [self._renewed(each) for each in value]
        if isinstance(value, dict):
            return {key: self._renewed(each) for key, each in value.items()}
        return value


def corpus() -> list[Prompt]:
    """All prompts, by name."""
    return [_read(file) for file in sorted(CORPUS.rglob("*.json")) if not file.name.endswith(_EXPECTED)]


def _read(file: Path) -> Prompt:
    expected = json.loads(file.with_name(file.stem + _EXPECTED).read_bytes())
    expected["now"] = datetime.fromisoformat(expected["now"]).timestamp()
    for name in ("moved", "kept", "becomes", "gone", "lost"):
        expected[name] = tuple(expected.get(name, ()))
    expected["again"] = tuple((old, new) for old, new in expected.get("again", ()))
    return Prompt(file.relative_to(CORPUS).with_suffix("").as_posix(), json.loads(file.read_bytes()), **expected)


def leading(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The messages in front of the conversation."""
    found = []
    for message in fields.get("messages", ()):
        if message["role"] not in LEADING:
            break
        found.append(message)
    return found


def last_input(fields: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The last message of the user or a tool, in a list; none if there is none."""
    return [each for each in fields.get("messages", ()) if each["role"] in INPUT_ROLES][-1:]


def strings(value: Any) -> Iterator[str]:
    """All strings in a value; names of members, too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from strings(each)


def prompt_of(fields: Mapping[str, Any]) -> list[Any]:
    """All of a request that the model reads."""
    return [fields[name] for name in ("messages", "tools", "prompt") if name in fields]


def count(text: str, value: Any) -> int:
    """How often a text stands in the strings of a value."""
    return sum(each.count(text) for each in strings(value))
