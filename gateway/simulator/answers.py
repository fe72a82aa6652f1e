"""Generates the answers of the simulated model.

The answer follows from the prompt's tokens, the place among ``n`` answers, and the seed: equal requests give equal
answers, so a test can detect a mixed-up one. It consists of words of one token each, so an answer that comes back
in the next turn's history has the same tokens that were generated, as with a real model.
"""

import dataclasses
import hashlib
import itertools
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.prompt import TOKEN_BYTES
from gateway.tokenize.local import LocalEncoder

_END_OF_TURN = "<|im_end|>"
_SENTENCE = 10
_NATURAL_LENGTH = (24, 160)
_DEEPEST = 8
_MOST_BEGINNINGS = 16
"""Places in a prompt that are searched for the beginning of an answer."""

_OPENERS = ("The", "It", "This", "When", "First", "There", "Please", "Your", "Once", "After", "If", "We", "Each")
_WORD_LIST = """the order account package delivery invoice customer service address number system request answer message
question team support library server engine model window network device is was has can will must should would may please
check open close update confirm send change review cancel return and or but because when while after before with
without from for to into about only also still already again now later soon early quickly simply directly new old same
other first next last small large short long clear open available possible important different"""
_WORDS = _WORD_LIST.split()


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """A tool call that the model is forced to make.

    Attributes:
        name: The function.
        schema: JSON schema of its arguments.
    """

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """The request's options for its answer.

    Attributes:
        max_tokens: Limit in tokens, at least 1.
        min_tokens: The model does not end its turn earlier.
        ignore_eos: The model never ends its turn.
        stop: Texts that end the answer; the answer does not contain them.
        seed: Another seed gives another answer.
        tool: A call to make instead of text.
        schema: JSON schema the text has to follow, or None for free text.
    """

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tool: ToolChoice | None = None
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GeneratedAnswer:
    """One generated answer.

    Attributes:
        ids: The generated tokens, the end-of-turn token included where the model ended its turn.
        pieces: For each token the text that it adds for the client (of a tool call: to its arguments).
        finish_reason: ``stop`` or ``length``.
        stop_reason: The stop text that was met, or None.
        tool: Name of the function called, or None.
    """

    ids: tuple[int, ...]
    pieces: tuple[str, ...]
    finish_reason: str
    stop_reason: str | None = None
    tool: str | None = None

    @property
    def text(self) -> str:
        """The whole text (of a tool call: its arguments)."""
        return "".join(self.pieces)


class Author:
    """Writes answers in the tokens of one tokenizer."""

    def __init__(self, encoder: LocalEncoder) -> None:
        self._encoder = encoder
        end = encoder.encode_text(_END_OF_TURN)
        if len(end) != TOKEN_BYTES:
            raise ValueError(f"the tokenizer does not know {_END_OF_TURN}")
        self._end = int.from_bytes(end, "little")
        self._openers = self._single(_OPENERS)
        self._words = self._single(f" {word}" for word in _WORDS)
        ((self._full_stop, _),) = self._single(["."])

    def write(self, prompt: bytes, place: int, wish: AnswerRequest) -> GeneratedAnswer:
        """The answer to a prompt; ``place`` counts the ``n`` answers from 0."""
        digest = hashlib.blake2b(prompt, digest_size=8, salt=f"{place}/{wish.seed}".encode()[:16]).digest()
        rng = random.Random(digest)  # noqa: S311 - has to be reproducible
        if wish.tool is not None:
            return self._call(wish.tool, rng, wish)
        if wish.schema is not None:
            text = json.dumps(example(wish.schema, rng))
            return self._cut(*self._spell(text), wish)
        length = min(max(rng.randint(*_NATURAL_LENGTH), wish.min_tokens), wish.max_tokens + 1)
        if wish.ignore_eos:
            length = wish.max_tokens + 1
        chosen = [rng.choice(self._openers), *rng.choices(self._words, k=length - 1)]
        for index in range(_SENTENCE, length, _SENTENCE):
            chosen[index] = (self._full_stop, ".")
        return self._cut([token for token, _ in chosen], [piece for _, piece in chosen], wish)

    def alternatives(self, answer: GeneratedAnswer, index: int, count: int) -> list[tuple[int, str, float]]:
        """The token at ``index`` and the ``count - 1`` likeliest others, likeliest first: id, text, log probability."""
        rng = random.Random(answer.ids[index] * 8191 + index)  # noqa: S311 - has to be reproducible
        best = -0.5 * rng.random()
        own = (answer.ids[index], self._encoder.decode([answer.ids[index]]), best)
        others = (word for word in rng.sample(self._words, min(count, len(self._words))) if word[0] != own[0])
        rest = [(token, piece, best - rank) for rank, (token, piece) in enumerate(others, start=1)]
        return [own, *rest][: max(count, 1)]

    def _single(self, texts: Any) -> list[tuple[int, str]]:
        """Those of the texts that are one token, with it."""
        pairs = [(self._encoder.encode_text(text), text) for text in texts]
        return [(int.from_bytes(ids, "little"), text) for ids, text in pairs if len(ids) == TOKEN_BYTES]

    def _spell(self, text: str) -> tuple[list[int], list[str]]:
        """Tokens of any text, and what each adds to it. A character that spans tokens counts for the last of them."""
        packed = self._encoder.encode_text(text)
        ids = [int.from_bytes(packed[at : at + TOKEN_BYTES], "little") for at in range(0, len(packed), TOKEN_BYTES)]
        ends = [len(self._encoder.decode(ids[:count]).rstrip("\N{REPLACEMENT CHARACTER}")) for count in range(len(ids))]
        ends.append(len(text))
        return ids, [text[start:end] for start, end in itertools.pairwise(ends)]

    def go_on(self, prompt: bytes, text: str, place: int, wish: AnswerRequest) -> GeneratedAnswer | None:
        """The rest of the answer to a prompt of which the client has ``text``; None if it does not begin that way.

        It is the same as if the answer had never been interrupted.
        """
        most = len(self._encoder.encode_text(text)) // TOKEN_BYTES
        whole = self.write(prompt, place, _longer(wish, most))
        known = 0
        begun = ""
        while len(begun) < len(text) and known < len(whole.pieces):
            begun += whole.pieces[known]
            known += 1
        if not text or begun != text or known > most:
            return None
        if known < most:
            whole = self.write(prompt, place, _longer(wish, known))
        return self._rest(whole, known)

    def go_on_in(self, prompt: bytes, place: int, wish: AnswerRequest) -> GeneratedAnswer | None:
        """The same for a prompt that ends with the beginning of the answer to the prompt before it."""
        ids = list(memoryview(prompt).cast("I"))
        openers = {token for token, _ in self._openers}
        begins = [at for at in range(1, len(ids)) if ids[at] in openers]
        for at in reversed(begins[-_MOST_BEGINNINGS:]):
            known = len(ids) - at
            whole = self.write(prompt[: at * TOKEN_BYTES], place, _longer(wish, known))
            if list(whole.ids[:known]) == ids[at:]:
                return self._rest(whole, known)
        return None

    @staticmethod
    def _rest(whole: GeneratedAnswer, known: int) -> GeneratedAnswer | None:
        ids, pieces = whole.ids[known:], whole.pieces[known:]
        return GeneratedAnswer(ids, pieces, whole.finish_reason, whole.stop_reason) if ids else None

    def _call(self, tool: ToolChoice, rng: random.Random, wish: AnswerRequest) -> GeneratedAnswer:
        """A tool call in the notation of the chat template; only its arguments are shown."""
        arguments = json.dumps(example(tool.schema, rng), ensure_ascii=False)
        before = f'<tool_call>\n{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
        ids, pieces = self._spell(f"{before}{arguments}}}\n</tool_call>")
        shown: list[str] = []
        at = 0
        for piece in pieces:
            start, end = at - len(before), at + len(piece) - len(before)
            shown.append(arguments[max(start, 0) : max(end, 0)])
            at += len(piece)
        answer = self._cut(ids, shown, wish)
        return GeneratedAnswer(answer.ids, answer.pieces, answer.finish_reason, answer.stop_reason, tool.name)

    def _cut(self, ids: list[int], pieces: list[str], wish: AnswerRequest) -> GeneratedAnswer:
        """End the answer where a stop text, the limit or the end of the turn comes first."""
        cut, met = _first_stop("".join(pieces[: wish.max_tokens]), wish.stop)
        if met is not None:
            kept: list[str] = []
            at = 0
            for piece in pieces:
                kept.append(piece[: max(cut - at, 0)])
                at += len(piece)
                if at >= cut + len(met):
                    break
            return GeneratedAnswer(tuple(ids[: len(kept)]), tuple(kept), "stop", met)
        if len(ids) >= wish.max_tokens:
            return GeneratedAnswer(tuple(ids[: wish.max_tokens]), tuple(pieces[: wish.max_tokens]), "length")
        return GeneratedAnswer((*ids, self._end), (*pieces, ""), "stop")


def _longer(wish: AnswerRequest, tokens: int) -> AnswerRequest:
    """The options of a continued answer of which so many tokens are known."""
    least = wish.min_tokens and wish.min_tokens + tokens
    return dataclasses.replace(wish, max_tokens=wish.max_tokens + tokens, min_tokens=least)


def _first_stop(text: str, stops: tuple[str, ...]) -> tuple[int, str | None]:
    """Where the first stop text begins, by where it ends: the engine sees the text grow."""
    found = [(text.find(stop) + len(stop), stop) for stop in stops if stop in text]
    if not found:
        return 0, None
    end, stop = min(found)
    return end - len(stop), stop


def example(schema: Mapping[str, Any], rng: random.Random, depth: int = 0) -> Any:
    """A value that follows a JSON schema, as far as types, enumerations and properties say."""
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return rng.choice(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return example(schema[key][0], rng, depth + 1)
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0] if kind else "object"
    if kind == "object":
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or depth >= _DEEPEST:
            return {}
        return {
            name: example(part if isinstance(part, Mapping) else {}, rng, depth + 1)
            for name, part in properties.items()
        }
    if kind == "array":
        items = schema.get("items")
        return [example(items, rng, depth + 1)] if isinstance(items, Mapping) and depth < _DEEPEST else []
    if kind == "integer":
        return rng.randrange(1, 100)
    if kind == "number":
        return rng.randrange(1, 1000) / 10
    if kind == "boolean":
        return rng.random() < 0.5
    return None if kind == "null" else rng.choice(_WORDS)
