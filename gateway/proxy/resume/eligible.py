"""Which requests another replica can go on with."""

from collections.abc import Mapping
from typing import Any

from gateway.core.request import ChatRequest, Endpoint

_MORE_THAN_TEXT = frozenset(
    {
        # What the answer holds besides text, or what forces its form from its first token on.
        *("tools", "functions", "logprobs", "top_logprobs", "prompt_logprobs", "echo", "structured_outputs"),
        *("regex", "ebnf", "json_schema", "audio", "use_beam_search"),
        # What stands behind the answer, or replaces or cuts the prompt that the text is to be put behind.
        *("suffix", "truncate_prompt_tokens", "kv_transfer_params", "prompt_embeds", "input_ids"),
        # The engine then does not hold back what may be the beginning of a stop text: one could span the seam.
        "include_stop_str_in_output",
    }
)
_MOST_BODY_BYTES = 1024 * 1024
"""To continue a stream its prompt is tokenized once more, between two events of other streams, and the body of a stream
that may be continued is held until its end."""

_GUIDED = "guided_"


def is_resumable(request: ChatRequest) -> bool:
    """Whether a request asks for one stream of plain text, and for nothing that is another thing when continued."""
    fields = request.fields
    if not request.stream or request.warms is not None or request.size > _MOST_BODY_BYTES:
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
    """Whether text can be put behind a conversation: a new answer, or the last message that is to be continued."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        return False
    if fields.get("continue_final_message") is True:
        last = messages[-1]
        return isinstance(last, dict) and last.get("role") == "assistant" and isinstance(last.get("content"), str)
    # Without the turn's beginning the model writes something else than an assistant's message.
    return fields.get("add_generation_prompt") is not False


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value not in ([], {}, "")
