"""The text an engine generated, out of the answer it gave.

Blocks filled while decoding are cached like those of a prompt: the next turn of a conversation finds them. To predict
that, the generated text is encoded behind the prompt's tokens. Only plain text can be: what a tool or reasoning parser
took apart is not what was generated.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.values.outcome import Ending, Outcome
from gateway.vendors import payloads

_NOT_TEXT = ("tool_calls", "function_call", "reasoning", "reasoning_content", "refusal")


def replies(outcome: Outcome) -> Sequence[str | None]:
    """Plain text of every choice; None for a choice that holds anything else."""
    if not outcome.answer or outcome.ending is not Ending.COMPLETE:
        return ()
    raw = b"".join(outcome.answer)
    pieces: dict[int, list[str] | None] = {}
    for document in _documents(raw, streamed=outcome.streamed):
        choices = document.get("choices") if isinstance(document, dict) else None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(index := choice.get("index", 0), int):
                _collect(pieces, index, choice)
    return [None if texts is None else "".join(texts) for texts in pieces.values()]


def _documents(raw: bytes, *, streamed: bool) -> list[Any]:
    found = []
    for text in payloads(raw) if streamed else (raw,):
        try:
            found.append(orjson.loads(text))
        except orjson.JSONDecodeError:
            continue
    return found


def _collect(pieces: dict[int, list[str] | None], index: int, choice: Mapping[str, Any]) -> None:
    message = choice.get("delta") or choice.get("message")
    if isinstance(message, dict):
        text = message.get("content")
        plain = not any(message.get(key) for key in _NOT_TEXT)
    else:
        text = choice.get("text")
        plain = True
    texts = pieces.setdefault(index, [])
    if not plain:
        pieces[index] = None
    elif texts is not None and isinstance(text, str) and text:
        texts.append(text)
