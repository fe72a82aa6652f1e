"""Makes the body that has another replica continue a stream: the client's body with the sent text behind its prompt.

Only the members that have to change are changed. vLLM continues an assistant's message with ``continue_final_message``
(and without ``add_generation_prompt``); a completion's prompt just becomes longer. ``is_resumable`` says which requests
can be continued.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.core.json_edit import last_member_value, replaced, spliced, with_members
from gateway.core.numbers import whole
from gateway.core.portions import finished
from gateway.core.request import ChatRequest, Endpoint

_MORE_THAN_TEXT = frozenset(
    {
        # The answer holds more than text, or its form is constrained from the first token on.
        *("tools", "functions", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "structured_outputs"),
        *("regex", "ebnf", "json_schema", "audio", "use_beam_search"),
        # Text behind the answer, or another prompt than the one that the text is put behind.
        *("suffix", "truncate_prompt_tokens", "kv_transfer_params", "prompt_embeds", "input_ids"),
        # The engine then does not hold back a possible beginning of a stop text, which could span the seam.
        "include_stop_str_in_output",
    }
)
_MAX_BODY_BYTES = 1024 * 1024
"""To continue a stream its prompt is tokenized once more, between two events of other streams, and the body of a stream
that may be continued is held until its end."""

_GUIDED = "guided_"


def is_resumable(request: ChatRequest) -> bool:
    """Whether a request asks for one stream of plain text, without options that a continuation would change."""
    fields = request.fields
    if not request.stream or request.warmup_target is not None or request.size > _MAX_BODY_BYTES:
        return False
    if any(_is_set(value) for name, value in fields.items() if name in _MORE_THAN_TEXT or name.startswith(_GUIDED)):
        return False
    if any(fields.get(name) not in (None, 1) for name in ("n", "best_of")):
        return False
    form = fields.get("response_format")
    if form is not None and not (isinstance(form, Mapping) and form.get("type") == "text"):
        return False
    return _has_open_end(fields) if request.endpoint is Endpoint.CHAT else single_prompt(fields) is not None


def single_prompt(fields: Mapping[str, Any]) -> str | list[int] | None:
    """The prompt of a completion, text or token ids, also as the only one of a list; None if there are several."""
    prompt = fields.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    # An engine refuses a list that begins with a number and holds anything else, so that no stream is to be continued.
    return prompt if isinstance(prompt, list) and prompt and type(prompt[0]) is int else None


def _has_open_end(fields: Mapping[str, Any]) -> bool:
    """Whether text can be put behind a conversation: behind a new answer, or behind a last message to continue."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return False
    if fields.get("continue_final_message") is True:
        last = messages[-1]
        return isinstance(last, dict) and last.get("role") == "assistant" and isinstance(last.get("content"), str)
    # Without the header of a turn the model does not write an assistant's message.
    return fields.get("add_generation_prompt") is not False


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value not in ([], {}, "")


_COMPLETION_DEFAULT = 16
"""``max_tokens`` of ``/v1/completions`` where a request does not say, in the OpenAI API and in the engines."""

_LIMITS = ("max_completion_tokens", "max_tokens")
_SPACE = b" \t\r\n"


def tokens_left(request: ChatRequest, spent: int) -> int | None:
    """Tokens that the answer may still have; None: up to the model's context limit.

    Args:
        request: The client's request.
        spent: Tokens that the client has got.
    """
    fields = request.fields
    limit = next((limit for name in _LIMITS if (limit := whole(fields.get(name))) is not None), None)
    if limit is None and request.endpoint is Endpoint.COMPLETIONS and "max_tokens" not in fields:
        limit = _COMPLETION_DEFAULT
    return None if limit is None else limit - spent


def continued_body(request: ChatRequest, text: str, ids: Sequence[int] | None, spent: int) -> bytes | None:
    """The body of a continuation; None if it cannot be made.

    Args:
        request: The client's request, which ``is_resumable``.
        text: The text that the client has got; not empty.
        ids: Token ids of the text, needed behind a prompt of token ids; None if unknown.
        spent: Number of these tokens.
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
    """The members of a chat body on which the prompt's tokens depend."""
    messages = list(request.fields["messages"])
    before = messages.pop()["content"] if request.fields.get("continue_final_message") is True else ""
    longer = [*messages, {"role": "assistant", "content": before + text}]
    return {**request.fields, "messages": longer, "continue_final_message": True, "add_generation_prompt": False}


def _with_message(body: bytes, fields: Mapping[str, Any], text: str) -> bytes:
    """The messages with the text as a last message, or behind the one that the client has continued."""
    messages = fields["messages"]
    if fields.get("continue_final_message") is True:
        longer = orjson.dumps(messages[-1]["content"] + text)
        return replaced(body, {("messages", len(messages) - 1, "content"): longer})
    _, end = finished(last_member_value(body, "messages"))
    message = b',{"role":"assistant","content":"%b"}' % _json_text(text)
    return spliced(body, [(end - 1, end - 1, message)])


def _members_left(request: ChatRequest, spent: int) -> dict[str, bytes]:
    """The members that the continuation changes, with their values."""
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
    """A text, escaped for a JSON string, without the quotes."""
    return orjson.dumps(text)[1:-1]
