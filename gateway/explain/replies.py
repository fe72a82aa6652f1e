"""Extracts the generated text from the answer of an engine.

Blocks filled while decoding are cached like those of a prompt, and the next turn of a conversation hits them. To
predict that, the generated text is encoded after the prompt's tokens. That works for plain text only: the output of a
tool or reasoning parser is not the text that was generated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.core.explanation import ReplyChoice
from gateway.core.outcome import Ending, Outcome
from gateway.engines import payloads

_CALLS = ("tool_calls", "function_call")
_REASONING = ("reasoning", "reasoning_content")
_NOT_TEXT = (*_CALLS, *_REASONING, "refusal")


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    is_plain: bool = True
    has_calls: bool = False
    has_reasoning: bool = False

    def add(self, choice: Mapping[str, Any]) -> None:
        message = choice.get("delta") or choice.get("message")
        if isinstance(message, dict):
            text = message.get("content")
            self.is_plain = self.is_plain and not any(message.get(key) for key in _NOT_TEXT)
            self.has_calls = self.has_calls or any(message.get(key) for key in _CALLS)
            self.has_reasoning = self.has_reasoning or any(message.get(key) for key in _REASONING)
        else:
            text = choice.get("text")
        if isinstance(text, str):
            self.texts.append(text)

    def reply(self) -> ReplyChoice:
        text = "".join(self.texts) if self.is_plain else None
        return ReplyChoice(text, None, has_calls=self.has_calls, has_reasoning=self.has_reasoning)


def replies(outcome: Outcome) -> Sequence[ReplyChoice]:
    """The choices of an answer, without token ids; the text is None if a choice is not plain text only."""
    if not outcome.answer or outcome.ending is not Ending.COMPLETE:
        return ()
    raw = b"".join(outcome.answer)
    found: dict[int, _Choice] = {}
    for document in _documents(raw, streamed=outcome.streamed):
        choices = document.get("choices") if isinstance(document, dict) else None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(index := choice.get("index", 0), int):
                found.setdefault(index, _Choice()).add(choice)
    return [choice.reply() for choice in found.values()]


def _documents(raw: bytes, *, streamed: bool) -> list[Any]:
    found = []
    for text in payloads(raw) if streamed else (raw,):
        try:
            found.append(orjson.loads(text))
        except orjson.JSONDecodeError:
            continue
    return found
