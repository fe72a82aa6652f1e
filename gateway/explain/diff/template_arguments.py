"""What else the chat template was given: other arguments render another prompt."""

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import text_cause
from gateway.explain.diff.difference_text import text_difference
from gateway.explain.diff.given import PromptPair
from gateway.explain.diff.json_path import first_place

_FRONT = ("chat_template", "chat_template_kwargs", "add_special_tokens", "truncate_prompt_tokens", "reasoning_effort")
"""Of effect from the beginning of the prompt on, or anywhere in it."""
_END = ("add_generation_prompt", "continue_final_message")
"""Of effect behind the last message only."""
_DYNAMIC = frozenset({Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID})


def front_difference(given: PromptPair) -> Difference | None:
    """The first argument that differs and may change the prompt from its beginning on."""
    return _first(given, _FRONT)


def end_difference(given: PromptPair) -> Difference | None:
    """The first argument that differs and changes the prompt behind the last message, or takes its tools out."""
    if len(given.before.messages) == len(given.after.messages) and (found := _first(given, _END)):
        return found
    choices = [prompt.arguments.get("tool_choice") for prompt in (given.before, given.after)]
    return _told(given, "tool_choice") if given.after.tools and choices.count('"none"') == 1 else None


def documents_difference(given: PromptPair) -> Difference | None:
    """Whether other documents were given to be printed in the prompt: they are data of one user's question."""
    before, after = (prompt.arguments.get("documents", "") for prompt in (given.before, given.after))
    if before == after:
        return None
    cause = text_cause(before, after, is_template=False)
    return text_difference(
        cause, Reason.USER_DATA, before, after, path="documents", detail="documents", between=given.between
    )


def _first(given: PromptPair, names: tuple[str, ...]) -> Difference | None:
    for name in names:
        if given.before.arguments.get(name) != given.after.arguments.get(name):
            return _told(given, name)
    return None


def _told(given: PromptPair, name: str) -> Difference:
    before, after = _value(given.before.arguments, name), _value(given.after.arguments, name)
    path = name
    if (
        isinstance(before or {}, dict)
        and isinstance(after or {}, dict)
        and (place := first_place(before or {}, after or {}))
    ):
        path, before, after = name + place.path, place.before, place.after
    if isinstance(before, str) and isinstance(after, str) and before != after:
        cause = text_cause(before, after, is_template=True)
        if cause.reason in _DYNAMIC and name != "chat_template":
            return text_difference(cause, cause.reason, before, after, path=path, between=given.between)
        return text_difference(
            cause, Reason.TEMPLATE_CHANGED, before, after, path=path, detail="arguments", between=given.between
        )
    return Difference(
        Reason.TEMPLATE_CHANGED, "arguments", path, said=f"{path} is another one than before{given.between}"
    )


def _value(arguments: Mapping[str, str], name: str) -> Any:
    text = arguments.get(name)
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
