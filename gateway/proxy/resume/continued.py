"""The body that asks another replica to go on: the client's bytes, with the text that was sent put behind its prompt.

As elsewhere, only what has to change is touched. vLLM continues an assistant's message with ``continue_final_message``
(and without ``add_generation_prompt``); a completion's prompt just becomes longer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.core.json_edit import last_member_value, replaced, spliced, with_members
from gateway.core.numbers import whole
from gateway.core.portions import finished
from gateway.core.request import ChatRequest, Endpoint
from gateway.proxy.resume.eligible import single_prompt

_COMPLETION_DEFAULT = 16
"""``max_tokens`` of ``/v1/completions`` where a request does not say, in the OpenAI API and in the engines."""

_LIMITS = ("max_completion_tokens", "max_tokens")
_SPACE = b" \t\r\n"


def tokens_left(request: ChatRequest, spent: int) -> int | None:
    """How many tokens the answer may still have; None for as many as fit the model.

    Args:
        request: The client's.
        spent: Tokens that the client has got.
    """
    fields = request.fields
    limit = next((limit for name in _LIMITS if (limit := whole(fields.get(name))) is not None), None)
    if limit is None and request.endpoint is Endpoint.COMPLETIONS and "max_tokens" not in fields:
        limit = _COMPLETION_DEFAULT
    return None if limit is None else limit - spent


def continued_body(request: ChatRequest, text: str, ids: Sequence[int] | None, spent: int) -> bytes | None:
    """The body; None if it cannot be made.

    Args:
        request: The client's, one that ``is_resumable``.
        text: What its client has got; not empty.
        ids: The text's tokens, needed behind a prompt of tokens; None if they are not known.
        spent: How many tokens these are.
    """
    body = request.body
    if request.endpoint is Endpoint.CHAT:
        body = _with_message(body, request.fields, text)
    elif isinstance(single_prompt(request.fields), str):
        body = _behind_prompt(body, request.fields, _json_text(text))
    elif ids is not None:
        body = _behind_prompt(body, request.fields, b"".join(b",%d" % token for token in ids))
    else:
        return None
    return finished(with_members(body, request.fields, _members_left(request, spent)))


def continued_chat(request: ChatRequest, text: str) -> Mapping[str, Any]:
    """What the body of a chat says, as far as the prompt's tokens depend on it."""
    messages = list(request.fields["messages"])
    before = messages.pop()["content"] if request.fields.get("continue_final_message") is True else ""
    longer = [*messages, {"role": "assistant", "content": before + text}]
    return {**request.fields, "messages": longer, "continue_final_message": True, "add_generation_prompt": False}


def _with_message(body: bytes, fields: Mapping[str, Any], text: str) -> bytes:
    """The text as the beginning of a last message, or behind the one that the client wants continued."""
    messages = fields["messages"]
    if fields.get("continue_final_message") is True:
        longer = orjson.dumps(messages[-1]["content"] + text)
        return replaced(body, {("messages", len(messages) - 1, "content"): longer})
    _, end = finished(last_member_value(body, "messages"))
    message = b',{"role":"assistant","content":"%b"}' % _json_text(text)
    return spliced(body, [(end - 1, end - 1, message)])


def _members_left(request: ChatRequest, spent: int) -> dict[str, bytes]:
    """The members that are different in the body of the rest, and their values."""
    fields = request.fields
    limits = {name: whole(fields.get(name)) for name in (*_LIMITS, "min_tokens")}
    members = {name: b"%d" % max(limit - spent, 0) for name, limit in limits.items() if limit is not None}
    if request.endpoint is Endpoint.CHAT:
        if fields.get("continue_final_message") is not True:
            members |= {"continue_final_message": b"true", "add_generation_prompt": b"false"}
    elif "max_tokens" not in fields:
        members["max_tokens"] = b"%d" % (_COMPLETION_DEFAULT - spent)
    return members


def _behind_prompt(body: bytes, fields: Mapping[str, Any], more: bytes) -> bytes:
    """More text, or more ids, behind a completion's prompt: in front of its closing quote or bracket."""
    _, end = finished(last_member_value(body, "prompt"))
    if isinstance(prompt := fields["prompt"], list) and not isinstance(prompt[0], int):
        end = len(body[: end - 1].rstrip(_SPACE))  # the list's only prompt
    return spliced(body, [(end - 1, end - 1, more)])


def _json_text(text: str) -> bytes:
    """A text as it stands between the quotes of a JSON string."""
    return orjson.dumps(text)[1:-1]
