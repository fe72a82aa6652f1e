"""A lower bound of a prompt's tokens, before it is encoded."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.core.portions import Portioned
from gateway.core.request import Endpoint

_CHARACTERS_PER_TOKEN = 16
"""Characters per token, more than in ordinary text (prose has four to five, deeply indented source code up to ten), so
that the estimate is a lower bound."""

_PART_TEXTS = ("text", "refusal", "thinking")


_AT_ONCE = 4096
"""Messages, parts and prompts per portion."""


def characters(endpoint: Endpoint, fields: Mapping[str, Any]) -> Portioned[int]:
    """Characters of a request's text. A prompt given as token ids has none; media and tools are left out."""
    total = 0
    for step, text in enumerate(_texts(endpoint, fields), 1):
        total += len(text)
        if step % _AT_ONCE == 0:
            yield
    return total


def least_tokens(endpoint: Endpoint, fields: Mapping[str, Any]) -> Portioned[int]:
    """Lower bound of a request's prompt tokens."""
    tokens = (yield from characters(endpoint, fields)) // _CHARACTERS_PER_TOKEN
    if endpoint is not Endpoint.CHAT:
        tokens += _ids(fields.get("prompt"))
    limit = fields.get("truncate_prompt_tokens")
    return min(tokens, limit) if type(limit) is int and limit > 0 else tokens


def _texts(endpoint: Endpoint, fields: Mapping[str, Any]) -> Iterator[str]:
    """The texts, and an empty one for each part without text, so that each step of the caller is short."""
    if endpoint is not Endpoint.CHAT:
        prompt = fields.get("prompt")
        prompts = prompt if isinstance(prompt, list) else [prompt]
        if not prompts or type(prompts[0]) is not int:
            yield from (each if isinstance(each, str) else "" for each in prompts)
        return
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else (content,):
            if isinstance(part, str):
                yield part
            elif isinstance(part, dict):
                for key in _PART_TEXTS:
                    text = part.get(key)
                    yield text if isinstance(text, str) else ""
            else:
                yield ""


def _ids(prompt: Any) -> int:
    """Token ids in a prompt that is a list of them, or a list of such lists."""
    if not isinstance(prompt, list) or not prompt:
        return 0
    if isinstance(prompt[0], int):
        return len(prompt)
    return sum(len(each) for each in prompt if isinstance(each, list))
