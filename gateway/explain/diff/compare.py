"""Finds the first difference of two prompts, in the order in which a chat template renders them.

``find_difference`` compares tools, messages, the reply, and template arguments. This module compares tools and
arguments itself; ``sequence`` compares messages, ``message`` the reply.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from gateway.canon.document_places import DocumentPlace
from gateway.core.explanation import Difference, ReplyChoice
from gateway.core.reasons import Reason
from gateway.explain.diff.cause import DiffCause, text_cause, text_difference
from gateway.explain.diff.message import reply_difference
from gateway.explain.diff.sequence import message_difference, unrendered_difference
from gateway.explain.prompt_text import PromptPair, PromptText, Tool, counted, shown

_AS_ANYWHERE = frozenset({Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID, Reason.WHITESPACE})


def find_difference(
    before: PromptText,
    after: PromptText,
    *,
    before_source: str,
    after_source: str,
    same_conversation: bool,
    replies: Sequence[ReplyChoice],
    tools_first: bool,
    equal_share: float = 1.0,
    places: Sequence[DocumentPlace] = (),
) -> Difference | None:
    """Finds where and why a prompt first differs from an earlier one.

    Fields that not every template renders (arguments, documents, names, the content's form) count if nothing else
    differs, or if the tokens diverge well before the other difference.

    Args:
        before: The earlier prompt.
        after: The later one.
        before_source: Client family of the earlier.
        after_source: Client family of the later.
        same_conversation: Whether the later prompt continues the conversation of the earlier.
        replies: Replies of the engine to the earlier; empty if unknown.
        tools_first: Whether the chat template renders tools before the system message.
        equal_share: Length of the common token prefix, as a share of the later prompt, 0 to 1.
        places: How the operator declares documents, besides the separators that are found without.

    Returns:
        The first difference. None if one prompt is a prefix of the other: appending is no difference.
    """
    given = PromptPair(before, after, before_source, after_source, same_conversation, replies, places)
    sure = _sure_difference(given, tools_first=tools_first) or reply_difference(given)
    if sure is None or _parts_in_front(given, sure, equal_share):
        for find in (front_difference, documents_difference, unrendered_difference):
            found = find(given)
            if found is not None:
                return found
    return sure or end_difference(given)


def tools_difference(given: PromptPair) -> Difference | None:
    """The first difference in the tools of two prompts; None if they are identical."""
    before, after = given.before.tools, given.after.tools
    index = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0].raw != pair[1].raw), None)
    if index is None:
        if len(before) == len(after):
            return None
        index = min(len(before), len(after))
    one = before[index] if index < len(before) else None
    other = after[index] if index < len(after) else None
    if one is None or other is None:
        return _more_or_fewer(before, after, index, given)
    if one.canonical == other.canonical:
        return _changed(one, other, index, given)
    if Counter(tool.canonical for tool in before) == Counter(tool.canonical for tool in after):
        return _reordered(one, other, index, given)
    return _at_one_place(before, after, index, given)


def _at_one_place(before: Sequence[Tool], after: Sequence[Tool], index: int, given: PromptPair) -> Difference:
    """The difference of two unequal tools at the same index: changed, renamed, reordered, added or removed."""
    one, other = before[index], after[index]
    if one.name == other.name:
        # Among tools with the same or no name, one may have been inserted in front of the others.
        if one.canonical in _canonicals(after[index:]) and _count(after, one.name) > _count(before, one.name):
            return _more_or_fewer(before, after, index, given)
        if other.canonical in _canonicals(before[index:]) and _count(before, one.name) > _count(after, one.name):
            return _more_or_fewer(before, after, index, given)
        return _changed(one, other, index, given)
    is_kept, is_known = _count(after[index:], one.name), _count(before[index:], other.name)
    if is_kept and is_known:
        return _reordered(one, other, index, given)
    if not is_kept and not is_known and (place := _renamed(one, other)):
        return _tools_changed(given, "changed", place, index, f"tool {_name(one)} was renamed {_name(other)}")
    return _more_or_fewer(before, after, index, given)


def _more_or_fewer(before: Sequence[Tool], after: Sequence[Tool], index: int, given: PromptPair) -> Difference:
    added = list((Counter(map(_name, after)) - Counter(map(_name, before))).elements())
    removed = list((Counter(map(_name, before)) - Counter(map(_name, after))).elements())
    is_added = bool(added) and (
        not removed or index >= len(before) or _name(after[min(index, len(after) - 1)]) in added
    )
    names, detail = (
        (added, "added") if is_added else (removed or [_name(before[min(index, len(before) - 1)])], "removed")
    )
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return _tools_changed(given, detail, None, index, f"{counted(len(names), 'tool')} {detail}: {listed}")


def _reordered(one: Tool, other: Tool, index: int, given: PromptPair) -> Difference:
    return Difference(
        Reason.TOOLS_REORDERED,
        "tool_order",
        f"tools[{index}]",
        said=f"the same tools in another order: {_name(other)} stands where {_name(one)} stood{given.between}",
    )


def _changed(one: Tool, other: Tool, index: int, given: PromptPair) -> Difference:
    """The first difference within a tool."""
    place = first_place(_loaded(one), _loaded(other))
    if place is None:
        return _tools_changed(given, "changed", None, index, f"tool {_name(other)} changed")
    path = f"tools[{index}]{place.path}"
    field = place.path.removeprefix(".") or "the tool"
    if place.how == "key_order":
        said = f"tool {_name(other)}: {field} has the same keys in another order{given.between}"
        return Difference(Reason.TOOLS_REORDERED, "key_order", path, said=said)
    if isinstance(place.before, str) and isinstance(place.after, str):
        return _other_text(place.before, place.after, path, f"tool {_name(other)}: {field}", given)
    return _tools_changed(given, "changed", place, index, f"tool {_name(other)}: {field} {place.how}")


def _other_text(before: str, after: str, path: str, subject: str, given: PromptPair) -> Difference:
    cause: DiffCause = text_cause(before, after, is_template=False)
    reason = cause.reason if cause.reason in _AS_ANYWHERE else None
    found = text_difference(
        cause,
        reason or Reason.TOOLS_CHANGED,
        before,
        after,
        path=path,
        detail="" if reason else "changed",
        between=given.between,
    )
    if reason:
        return found
    return msgspec.structs.replace(found, said=f"{subject} changed{given.between}")


def _tools_changed(given: PromptPair, detail: str, place: "JsonPlace | None", index: int, said: str) -> Difference:
    return Difference(
        Reason.TOOLS_CHANGED, detail, f"tools[{index}]{place.path if place else ''}", said=said + given.between
    )


def _renamed(one: Tool, other: Tool) -> "JsonPlace | None":
    """The place of the name if nothing else differs."""
    before, after = _loaded(one), _loaded(other)
    place = first_place(before, after)
    if place is None or place.path not in {".function.name", ".name"}:
        return None
    name = after["function"] if place.path == ".function.name" else after
    name["name"] = place.before
    return place if first_place(before, after) is None else None


def _loaded(tool: Tool) -> Any:
    try:
        return orjson.loads(tool.raw)
    except orjson.JSONDecodeError:
        return tool.raw


def _name(tool: Tool) -> str:
    return shown(tool.name) or "without a name"


def _count(tools: Sequence[Tool], name: str) -> int:
    return sum(tool.name == name for tool in tools)


def _canonicals(tools: Sequence[Tool]) -> frozenset[str]:
    return frozenset(tool.canonical for tool in tools)


_FRONT = ("chat_template", "chat_template_kwargs", "add_special_tokens", "truncate_prompt_tokens", "reasoning_effort")
"""Arguments that may change the prompt anywhere, also at its beginning."""

_END = ("add_generation_prompt", "continue_final_message")
"""Arguments that change the prompt after the last message only."""

_DYNAMIC = frozenset({Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID})


def front_difference(given: PromptPair) -> Difference | None:
    """The first differing argument that may change the prompt from its beginning on."""
    return _first(given, _FRONT)


def end_difference(given: PromptPair) -> Difference | None:
    """The first differing argument that changes the prompt after the last message, or removes its tools."""
    if len(given.before.messages) == len(given.after.messages) and (found := _first(given, _END)):
        return found
    choices = [prompt.arguments.get("tool_choice") for prompt in (given.before, given.after)]
    return _argument_difference(given, "tool_choice") if given.after.tools and choices.count('"none"') == 1 else None


def documents_difference(given: PromptPair) -> Difference | None:
    """The difference in the documents to render; None if they are equal. Documents belong to one user's question."""
    before, after = (prompt.arguments.get("documents", "") for prompt in (given.before, given.after))
    if before == after:
        return None
    cause = text_cause(before, after, is_template=False, places=given.places)
    if cause.reason is Reason.DOCUMENTS_REORDERED:
        return text_difference(cause, cause.reason, before, after, path="documents", between=given.between)
    return text_difference(
        cause, Reason.USER_DATA, before, after, path="documents", detail="documents", between=given.between
    )


def _first(given: PromptPair, names: tuple[str, ...]) -> Difference | None:
    for name in names:
        if given.before.arguments.get(name) != given.after.arguments.get(name):
            return _argument_difference(given, name)
    return None


def _argument_difference(given: PromptPair, name: str) -> Difference:
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
            cause, Reason.ARGUMENTS_CHANGED, before, after, path=path, detail="arguments", between=given.between
        )
    return Difference(
        Reason.ARGUMENTS_CHANGED, "arguments", path, said=f"{path} is another one than before{given.between}"
    )


def _value(arguments: Mapping[str, str], name: str) -> Any:
    text = arguments.get(name)
    try:
        return None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _sure_difference(given: PromptPair, *, tools_first: bool) -> Difference | None:
    """The first difference in what every template renders: tools and messages."""
    tools = tools_difference(given)
    if tools and tools_first:
        return tools
    messages = message_difference(given)
    return tools if tools and not (messages and _is_in_front_of_tools(given, messages)) else messages


def _parts_in_front(given: PromptPair, found: Difference, equal_share: float) -> bool:
    """Whether the tokens diverge before a difference: the equal share is less than half of the text before it."""
    texts = [message.text for message in given.after.messages]
    whole = sum(map(len, texts)) + sum(len(tool.raw) for tool in given.after.tools)
    in_front = sum(map(len, texts[: found.message])) if found.message is not None else 0
    return equal_share < in_front / max(whole, 1) / 2


def _is_in_front_of_tools(given: PromptPair, found: Difference) -> bool:
    """Whether a message difference precedes the tools.

    Templates render tools in or right after a leading system message, else before all messages.
    """
    return found.message == 0 and bool(given.before.leading or given.after.leading)


_DEPTH = 40
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w\-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class JsonPlace:
    """The first place where two values differ.

    Attributes:
        path: Path from the root, as ``.function.parameters.required[1]``; empty for the root.
        how: ``changed``, ``added``, ``removed``, or ``key_order``.
        before: The earlier value; None if it was added.
        after: The later value; None if it was removed.
    """

    path: str
    how: str
    before: Any = None
    after: Any = None


def first_place(before: Any, after: Any, path: str = "", depth: int = 0) -> JsonPlace | None:
    """The first differing place, in document order; None if the values are equal."""
    if depth < _DEPTH and isinstance(before, dict) and isinstance(after, dict):
        return _in_object(before, after, path, depth)
    if depth < _DEPTH and isinstance(before, list) and isinstance(after, list):
        return _in_list(before, after, path, depth)
    if type(before) is type(after) and (depth >= _DEPTH or before == after):
        return None
    return JsonPlace(path, "changed", before, after)


def _in_object(before: dict[str, Any], after: dict[str, Any], path: str, depth: int) -> JsonPlace | None:
    for one, other in zip(before, after, strict=False):
        if one != other:
            if one not in after:
                return JsonPlace(path + step(one), "removed", before[one])
            if other not in before:
                return JsonPlace(path + step(other), "added", None, after[other])
            return JsonPlace(path, "key_order", before, after)
        if place := first_place(before[one], after[one], path + step(one), depth + 1):
            return place
    for key in list(after)[len(before) :]:
        return JsonPlace(path + step(key), "added", None, after[key])
    for key in list(before)[len(after) :]:
        return JsonPlace(path + step(key), "removed", before[key])
    return None


def _in_list(before: list[Any], after: list[Any], path: str, depth: int) -> JsonPlace | None:
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        if place := first_place(one, other, f"{path}[{index}]", depth + 1):
            return place
    shorter = min(len(before), len(after))
    if len(before) == len(after):
        return None
    if len(after) > shorter:
        return JsonPlace(f"{path}[{shorter}]", "added", None, after[shorter])
    return JsonPlace(f"{path}[{shorter}]", "removed", before[shorter])


def step(key: str) -> str:
    """A key as a step of a path."""
    return f".{key}" if _PLAIN_KEY.fullmatch(key) and len(key) <= 60 else f'["{shown(key)}"]'
