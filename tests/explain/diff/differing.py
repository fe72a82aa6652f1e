"""Prompts to compare, written shortly."""

import orjson

from gateway.core.explanation import Difference, ReplyChoice
from gateway.explain.diff import find_difference
from gateway.explain.prompt_text import PromptText, prompt_text


def chat(*messages, tools=None, **fields) -> PromptText:
    """A chat prompt of (role, content) pairs or whole messages."""
    listed = [
        message if isinstance(message, dict) else {"role": message[0], "content": message[1]} for message in messages
    ]
    body = {"model": "m", "messages": listed, **fields}
    if tools is not None:
        body["tools"] = tools
    return prompt_text("/v1/chat/completions", orjson.loads(orjson.dumps(body)))


def completion(prompt, **fields) -> PromptText:
    return prompt_text("/v1/completions", {"model": "m", "prompt": prompt, **fields})


def tool(name, description="Does it.", properties=None, **more) -> dict:
    parameters = {"type": "object", "properties": properties or {"city": {"type": "string"}}, "required": ["city"]}
    function = {"name": name, "description": description, "parameters": parameters, **more}
    return {"type": "function", "function": function}


def difference(
    before: PromptText,
    after: PromptText,
    *,
    sources=("web", "web"),
    same_conversation=True,
    replies=(),
    tools_first=False,
) -> Difference | None:
    return find_difference(
        before,
        after,
        before_source=sources[0],
        after_source=sources[1],
        same_conversation=same_conversation,
        replies=replies,
        tools_first=tools_first,
    )


def answered(text=None, **more) -> ReplyChoice:
    return ReplyChoice(text, None, **more)


def code(found: Difference | None) -> tuple[str, str] | None:
    """The reason and the detail of a difference."""
    return None if found is None else (str(found.reason), found.detail)
