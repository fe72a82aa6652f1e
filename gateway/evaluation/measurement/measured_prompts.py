"""The prompts of a measurement: built in, from a file of request bodies, or from a trace.

Every prompt is sent with a *mark*: six words at its very beginning, or a ``cache_salt``. Prompts with different marks
share no cached block, however equal the rest of them is; that makes a request cold by construction.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, Protocol

from gateway.core.request import Endpoint
from gateway.evaluation.bad_input import BadInput
from gateway.evaluation.workload_trace import TraceReader, TraceRequest

Fields = dict[str, Any]

_WORDS = (
    "account address answer area art back bank base bed bird board boat book box bridge building business card care"
    " case chair change city class coat color company corner cost country course cup day deal desk door dress drive"
    " earth edge effect end energy event face fact family farm field fire floor food form friend game garden glass"
    " group hand head heart hill history home horse hour house idea island job key king lake land language law letter"
    " level life light line list machine market matter member minute moment money month morning mother music name"
    " nature night note number office order page paper part party people person picture place plan plant point power"
    " price problem question rate reason report result river road room rule school science sea season second series"
    " service ship shop side sign size sound space stage star state station step stone story street summer sun system"
    " table teacher team test time town trade train tree turn unit value view voice wall war water way week wind"
    " window winter woman wood word work world year"
).split()
"""Common words, which are one token each in most tokenizers. None of them makes a time, an id or a name."""

_MARK_WORDS = 6
_SENTENCE_WORDS = 12
_MOST_BODIES = 100_000
_LONGEST_LINE = 32 * 1024 * 1024
_SHOWN_CHARS = 80


class PromptBody(NamedTuple):
    """A request before it is marked and given a model.

    Attributes:
        endpoint: Where it is sent.
        fields: The body. Not to be changed.
        output_tokens: Tokens of the answer, if the prompt's source says it; else None.
    """

    endpoint: Endpoint
    fields: Mapping[str, Any]
    output_tokens: int | None = None


class PromptSource(Protocol):
    """Prompts by number."""

    def __len__(self) -> int:
        """Number of different prompts; a larger number begins again."""
        ...

    def body(self, number: int) -> PromptBody:
        """The prompt of a number; the same for the same number."""
        ...


class BuiltInPrompts:
    """Prose of common words: a system message, which is nearly all of the prompt, and a question.

    Args:
        tokens: Length of a prompt.
        count: Number of prompts.
        seed: Of the words.
        clock: Unix seconds; a time then stands in the first line of each prompt, one second after that of the one
            before, and the rest of all system messages is equal. None: no time, and all system messages differ.

    Attributes:
        tokens_per_word: Of the tokenizer; 1 until it is known.
    """

    def __init__(self, tokens: int, count: int, seed: int, clock: float | None = None) -> None:
        self._tokens = tokens
        self._count = count
        self._seed = seed
        self._clock = clock
        self.tokens_per_word = 1.0

    def __len__(self) -> int:
        return self._count

    @property
    def words(self) -> int:
        """Words of the system message."""
        return max(1, round(self._tokens / self.tokens_per_word))

    def body(self, number: int) -> PromptBody:
        """See ``PromptSource``."""
        number %= self._count
        text = prose(f"{self._seed} {0 if self._clock is not None else number}", self.words)
        if self._clock is not None:
            now = datetime.fromtimestamp(self._clock + number, UTC)
            text = f"Current time: {now:%Y-%m-%d %H:%M:%S}\n{text}"
        question = f"What does the text say about the {_WORDS[number % len(_WORDS)]}?"
        messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
        return PromptBody(Endpoint.CHAT, {"messages": messages})


class FilePrompts:
    """Request bodies, one JSON object a line, as they are sent to the API. All are read and checked at once.

    Args:
        path: The file.
        most: Number of lines that are read at most.
        needs_text: Whether each prompt must have a text to put a mark into.

    Raises:
        BadInput: the file cannot be read, or a line is no request; the message names the line.
    """

    def __init__(self, path: Path, most: int, *, needs_text: bool) -> None:
        self._bodies: list[PromptBody] = []
        try:
            with path.open("rb") as file:
                for number, line in enumerate(islice(file, _MOST_BODIES), 1):
                    if len(self._bodies) < most and line.strip():
                        self._bodies.append(_parsed(f"{path}:{number}", line, needs_text=needs_text))
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
        if not self._bodies:
            raise BadInput(f"{path}: holds no request: expected JSON lines as they are sent to {Endpoint.CHAT}")

    def __len__(self) -> int:
        return len(self._bodies)

    def body(self, number: int) -> PromptBody:
        """See ``PromptSource``."""
        return self._bodies[number % len(self._bodies)]


class TracePrompts:
    """The first requests of a trace, with text in place of block ids: equal ids become equal text.

    Args:
        path: The file.
        most: Number of requests that are read at most.

    Attributes:
        times: Arrival of each request, in seconds after the first one.
        tokens_per_word: Of the tokenizer; 1 until it is known.

    Raises:
        BadInput: the file cannot be read, or is no trace.
    """

    def __init__(self, path: Path, most: int) -> None:
        try:
            with path.open("rb") as file:
                reader = TraceReader(file, str(path))
                self._requests: list[TraceRequest] = list(islice(reader, most))
        except OSError as error:
            raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
        if not self._requests:
            raise BadInput(f"{path}: holds no request: expected a trace of JSON lines with `timestamp` and `hash_ids`")
        self._block_size = reader.block_size
        self.times: Sequence[float] = [each.at - self._requests[0].at for each in self._requests]
        self.tokens_per_word = 1.0

    def __len__(self) -> int:
        return len(self._requests)

    def body(self, number: int) -> PromptBody:
        """See ``PromptSource``."""
        request = self._requests[number % len(self._requests)]
        left = request.prompt_tokens
        pieces = []
        for block in request.blocks:
            tokens = min(left, self._block_size)
            left -= tokens
            pieces.append(prose(f"block {block}", max(1, round(tokens / self.tokens_per_word))))
        messages = [{"role": "user", "content": " ".join(pieces) or "Hello."}]
        return PromptBody(Endpoint.CHAT, {"messages": messages}, max(1, request.output_tokens))


def prose(seed: str, words: int) -> str:
    """Text of so many words, the same for the same seed."""
    drawn = Random(seed).choices(_WORDS, k=words)  # noqa: S311 - has to be reproducible
    sentences = (drawn[at : at + _SENTENCE_WORDS] for at in range(0, words, _SENTENCE_WORDS))
    return " ".join(" ".join(each).capitalize() + "." for each in sentences)


def mark(seed: str) -> str:
    """Six words that begin no other prompt, or hardly ever: there are some 10^13."""
    return " ".join(Random(seed).choices(_WORDS, k=_MARK_WORDS)).capitalize() + "."  # noqa: S311 - no secret


def salted(fields: Mapping[str, Any], said: str) -> Fields:
    """A body with a mark as its ``cache_salt``."""
    return {**fields, "cache_salt": said.rstrip(".").replace(" ", "-").lower()}


def marked(fields: Mapping[str, Any], said: str) -> Fields | None:
    """A body with a mark at the beginning of its first text; None if it has no text."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return {**fields, "prompt": f"{said} {prompt}"}
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return None
    for m, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            changed: Any = f"{said} {content}"
        elif isinstance(content, list) and (found := _with_mark(content, said)) is not None:
            changed = found
        else:
            continue
        return {**fields, "messages": [*messages[:m], {**message, "content": changed}, *messages[m + 1 :]]}
    return None


def _with_mark(parts: Sequence[Any], said: str) -> list[Any] | None:
    for p, part in enumerate(parts):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return [*parts[:p], {**part, "text": f"{said} {part['text']}"}, *parts[p + 1 :]]
    return None


def _parsed(place: str, line: bytes, *, needs_text: bool) -> PromptBody:
    if len(line) > _LONGEST_LINE:
        raise BadInput(f"{place}: longer than {_LONGEST_LINE:,} bytes, the most that a request may have")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place}: not JSON ({str(error)[:_SHOWN_CHARS]}): expected one request body a line") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("messages", fields.get("prompt")), list | str):
        raise BadInput(f"{place}: not a request: expected an object with `messages`, as it is sent to {Endpoint.CHAT}")
    if needs_text and marked(fields, "") is None:
        raise BadInput(f"{place}: its prompt has no text for a unique beginning: use `--unique salt`")
    return PromptBody(Endpoint.CHAT if "messages" in fields else Endpoint.COMPLETIONS, fields)
