"""A scenario as it stands in its file, and the bodies of its requests.

README.md beside this file says what a scenario holds.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
MAX_TOKENS = 8
"""Length of an answer, unless a request asks for another one."""

_SENDING = ("send", "begin", "abandon")
_ROLES = ("system", "developer", "user", "assistant", "tool")
_WORDS = """order parcel invoice refund customer address delivery account number system request answer message question
team support library server engine model window network device warranty policy return exchange store product garden
price payment card bank transfer contract address city street country language date page chapter section table figure
value field record entry report summary detail example note reason result change update version release branch commit
file folder path module class function method argument test error warning log line column token block cache prefix
shall may should must never always often seldom first second third last next before after during within without between
""".split()

Answers = Mapping[str, str]
"""What the engine answered to the requests so far, by their names."""


@dataclass(frozen=True)
class Scenario:
    """One file.

    Attributes:
        reason: Name of its folder.
        name: Name of the file.
        data: What it holds.
    """

    reason: str
    name: str
    data: Mapping[str, Any]

    @property
    def id(self) -> str:
        return f"{self.reason}/{self.name}"

    @property
    def steps(self) -> Sequence[Mapping[str, Any]]:
        steps: Sequence[Mapping[str, Any]] = self.data["steps"]
        return steps

    @property
    def expect(self) -> Mapping[str, Mapping[str, Any]]:
        expect: Mapping[str, Mapping[str, Any]] = self.data["expect"]
        return expect

    def sends(self) -> Iterator[Mapping[str, Any]]:
        """Every request, in order."""
        for step in self.steps:
            for each in step.get("together", [step]):
                if name_of(each):
                    yield each

    def template(self, name: str) -> str | None:
        """The chat template in use when a request is sent; None for the tokenizer's own."""
        template: str | None = self.data.get("template")
        for step in self.steps:
            template = step.get("template", template)
            if name in map(name_of, step.get("together", [step])):
                break
        return template

    def body(self, send: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
        """The body of a request."""
        resolve = _Resolver(self.data.get("given", {}), answers)
        if "chat" in send:
            fields = resolve(send["chat"])
            fields["messages"] = [resolve.message(each) for each in send["chat"]["messages"]]
        else:
            fields = resolve(send["completion"])
            if "prompts" in fields:
                fields["prompt"] = fields.pop("prompts")
            elif not _is_ids(fields["prompt"]):
                fields["prompt"] = resolve.text(send["completion"]["prompt"])
        if send.get("stream"):
            fields["stream"] = True
        return {"model": self.data.get("model", "demo"), "max_tokens": MAX_TOKENS} | fields


def name_of(step: Mapping[str, Any]) -> str:
    """Name of the request that a step sends through the gateway; empty if it sends none."""
    return next((step[act] for act in _SENDING if act in step), "")


def load(path: Path) -> Scenario:
    """One scenario."""
    return Scenario(path.parent.name, path.stem, yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader))


def load_all() -> list[Scenario]:
    """Every scenario there is."""
    return [load(path) for path in sorted(FOLDER.glob("*/*.yaml"))]


def words(count: int, seed: int) -> str:
    """So many words in sentences, the same for the same seed."""
    chosen = random.Random(seed).choices(_WORDS, k=count)
    sentences = [" ".join(chosen[at : at + 12]).capitalize() + "." for at in range(0, count, 12)]
    return " ".join(sentences)


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(isinstance(each, int) for each in prompt)


class _Resolver:
    def __init__(self, given: Mapping[str, Any], answers: Answers) -> None:
        self._given = given
        self._answers = answers

    def __call__(self, value: Any) -> Any:
        """A value with what it refers to in its place; lists whose entries refer to lists become one list."""
        if isinstance(value, list):
            found: list[Any] = []
            for each in value:
                resolved = self(each)
                found += (
                    resolved if isinstance(each, dict) and "use" in each and isinstance(resolved, list) else [resolved]
                )
            return found
        if not isinstance(value, dict):
            return value
        for name, make in self._makers.items():
            if name in value:
                return make(value)
        return {key: self(each) for key, each in value.items()}

    def text(self, value: Any) -> str:
        """A text; of a list its parts in one."""
        if isinstance(value, list):
            return "".join(map(self.text, value))
        resolved = self(value)
        return self.text(resolved) if isinstance(resolved, list) else str(resolved)

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message: ``{user: TEXT}``, or as the API has it."""
        if "role" in message:
            resolved: dict[str, Any] = self(message)
            return resolved
        ((role, content),) = message.items()
        assert role in _ROLES, role
        return {"role": role, "content": self.text(content)}

    @property
    def _makers(self) -> Mapping[str, Callable[[Mapping[str, Any]], Any]]:
        return {"use": self._use, "words": self._prose, "repeat": self._repeat, "answer_to": self._answer}

    def _use(self, value: Mapping[str, Any]) -> Any:
        return self(self._given[value["use"]])

    def _prose(self, value: Mapping[str, Any]) -> str:
        return words(value["words"], value["seed"])

    def _repeat(self, value: Mapping[str, Any]) -> str:
        return self.text(value["repeat"]) * int(value["times"])

    def _answer(self, value: Mapping[str, Any]) -> str:
        text = self._answers[value["answer_to"]]
        old, new = value.get("replace", ("", ""))
        assert old in text, f"{old!r} does not stand in {text!r}"
        return text.replace(old, new, 1)
