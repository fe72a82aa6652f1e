"""How long a prompt is, at a glance: before anything is done with its text."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.values.request import Endpoint

_CHARACTERS_PER_TOKEN = 16
"""More than in any ordinary text (prose has four to five, source code with deep indentation up to ten), so that what is
estimated is less than what is counted later."""

_PART_TEXTS = ("text", "refusal", "thinking")


def characters(endpoint: Endpoint, fields: Mapping[str, Any]) -> int:
    """Characters of a request's text. A prompt given as token ids has none; media and tools are left out."""
    return sum(map(len, _texts(endpoint, fields)))


def least_tokens(endpoint: Endpoint, fields: Mapping[str, Any]) -> int:
    """Prompt tokens that a request has at least."""
    tokens = characters(endpoint, fields) // _CHARACTERS_PER_TOKEN
    if endpoint is not Endpoint.CHAT:
        tokens += _ids(fields.get("prompt"))
    limit = fields.get("truncate_prompt_tokens")
    return min(tokens, limit) if type(limit) is int and limit > 0 else tokens


def _texts(endpoint: Endpoint, fields: Mapping[str, Any]) -> Iterator[str]:
    if endpoint is not Endpoint.CHAT:
        prompt = fields.get("prompt")
        prompts = prompt if isinstance(prompt, list) else [prompt]
        yield from (each for each in prompts if isinstance(each, str))
        return
    messages = fields.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, Mapping):
            continue
        content = message.get("content")
        for part in content if isinstance(content, list) else (content,):
            if isinstance(part, str):
                yield part
            elif isinstance(part, Mapping):
                yield from (part[key] for key in _PART_TEXTS if isinstance(part.get(key), str))


def _ids(prompt: Any) -> int:
    """Token ids in a prompt that is a list of them, or a list of such lists."""
    if not isinstance(prompt, list) or not prompt:
        return 0
    if isinstance(prompt[0], int):
        return len(prompt)
    return sum(len(each) for each in prompt if isinstance(each, list))
