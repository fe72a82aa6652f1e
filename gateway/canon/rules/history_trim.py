"""``history-trim``: the front of a conversation that became too long for the model is left out, in large steps.

Where the cut is depends only on what stands in front of it, so nothing has to be remembered, and the cut stays where
it is while the conversation grows: only when there is no room any more does it move, by a whole step.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import orjson

from gateway.canon.edits import Edit
from gateway.canon.rule import NOTHING, Detected, Fields, RuleContext
from gateway.canon.texts import BLOCK_ROLES, leading_messages, messages
from gateway.config.canon_settings import HistoryTrimSettings
from gateway.core.canonical import RuleName
from gateway.core.numbers import whole

_MESSAGE_MARKS = 6
"""Tokens of a chat template around a message."""

_CALL_MARKS = 12
"""And around a tool call in it."""

_TOOLS_MARKS = 200
"""What a template says of tools beside their definitions: how they are called."""

_MEDIA_TOKENS = 1000
"""Of an image or any other part that is no text: an estimate, as only the engine knows."""

_TEXT_OF_PART = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}

_BYTES_PER_TOKEN = 3
"""Where no tokenizer can tell: rather too many tokens than too few, for nearly all languages."""

_Measure = Callable[[str], int]


_MOST_FOR_THE_ANSWER = 0.25
"""Share of the context that is kept for an answer at most, however long it may become."""


class HistoryTrim:
    """Leaves out messages behind the leading ones, up to a message of the user: never a tool's result without its
    call, never the last message of the user and what follows it.

    Args:
        settings: When, and how much at a time.
    """

    name: ClassVar[RuleName] = RuleName.HISTORY_TRIM

    def __init__(self, settings: HistoryTrimSettings) -> None:
        self._settings = settings
        # Of what the leading messages and tools leave of the room. A step that takes more than there can be would have
        # the cut in front of the user's last message, turn after turn another one.
        self._largest_step = max(0.5, min(0.9, settings.step / settings.start))

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """What it changes; nothing where the limit is not known, or the prompt is far below it."""
        limit = max(given.context_limit, 0)
        # Many clients ask for all that the prompt leaves: that is no reason to cut it.
        room = limit - min(_answer_tokens(fields), int(_MOST_FOR_THE_ANSWER * limit))
        most = int(self._settings.start * room)
        # No text has more tokens than bytes: where even those are few, nothing needs to be counted.
        behind = given.behind_tokens * len(messages(fields))
        if most <= 0 or _prompt_tokens(fields, _utf8_bytes) + behind < most:
            return NOTHING
        measure = _estimate if given.count_tokens is None else given.count_tokens
        sizes = [
            _message_tokens(message, measure) + (given.behind_tokens if message.get("role") in BLOCK_ROLES else 0)
            for message in messages(fields)
        ]
        first = leading_messages(fields)
        room_behind = most - _tools_tokens(fields, measure) - sum(sizes[:first])
        excess = sum(sizes[first:]) - room_behind
        points = _cut_points(messages(fields), first)
        if excess < 0 or not points:
            return NOTHING
        step = max(1, min(int(self._settings.step * room), int(self._largest_step * room_behind)))
        return _cut_out(fields, first, _cut(points, sizes[first:], first, room_behind, step))


def _cut(points: Sequence[int], sizes: Sequence[int], first: int, room: int, step: int) -> int:
    """The message the history is to begin with: where it was cut last, had every message been followed by a request.

    So the cut stays where it is as long as what is left fits, although nobody remembers it.

    Args:
        points: Messages it may begin with.
        sizes: Tokens of the messages of the history.
        first: Number of its first message.
        room: Tokens that it has to stay below.
        step: Tokens of a step.
    """
    ahead = list(accumulate(sizes, initial=0))
    begins = [ahead[point - first] for point in points]
    cut = gone = known = 0
    for number, tokens in enumerate(ahead[1:], first):
        while known < len(points) and points[known] <= number:
            known += 1
        excess = tokens - room
        if known and excess >= gone:
            # As many steps from the front as it takes to be beyond what is not enough, and the first message there.
            enough = bisect_right(begins, excess, 0, known)
            steps = (begins[enough - 1] if enough else 0) // step + 1
            cut = min(bisect_left(begins, steps * step, 0, known), known - 1)
            gone = begins[cut]
    return points[cut]


def _answer_tokens(fields: Fields) -> int:
    """Tokens that the answer may have, as far as the client says."""
    for name in ("max_completion_tokens", "max_tokens"):
        most = whole(fields.get(name))
        if most is not None:
            return max(0, most)
    return 0


def _cut_points(found: Sequence[Mapping[str, Any]], first: int) -> list[int]:
    """The user's messages in front of which the history may be cut, all tool results staying with their calls."""
    points: list[int] = []
    calls: dict[str, int] = {}
    last_call = first
    for number in range(first, len(found)):
        message = found[number]
        role = message.get("role")
        if role == "user" and number > first:
            points.append(number)
        elif role == "assistant" and (message.get("tool_calls") or message.get("function_call")):
            last_call = number
            calls |= dict.fromkeys(_call_ids(message), number)
        elif role in ("tool", "function"):
            called = message.get("tool_call_id")
            at = calls.get(called, last_call) if isinstance(called, str) else last_call
            while points and points[-1] > at:
                points.pop()
    return points


def _call_ids(message: Mapping[str, Any]) -> list[str]:
    calls = message.get("tool_calls")
    return [
        call["id"]
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, dict) and isinstance(call.get("id"), str)
    ]


def _cut_out(fields: Fields, first: int, cut: int) -> Detected:
    before = messages(fields)
    count = cut - first
    said = f"{count} {'message' if count == 1 else 'messages'} left out: the conversation is too long for the model."
    edit = Edit(RuleName.HISTORY_TRIM, "cut", ("messages",), before, before[:first] + before[cut:], said=said)
    return Detected((edit,), cut_messages=count)


def _prompt_tokens(fields: Fields, measure: _Measure) -> int:
    return sum(_message_tokens(message, measure) for message in messages(fields)) + _tools_tokens(fields, measure)


def _tools_tokens(fields: Fields, measure: _Measure) -> int:
    tools = fields.get("tools")
    return measure(_json(tools)) + _TOOLS_MARKS if tools else 0


def _message_tokens(message: Mapping[str, Any], measure: _Measure) -> int:
    content = message.get("content")
    tokens = _MESSAGE_MARKS
    if isinstance(content, str):
        tokens += measure(content)
    elif isinstance(content, list):
        tokens += sum(_part_tokens(part, measure) for part in content)
    # Some templates print what the model thought, others leave it out: counted, so that the engine refuses nothing.
    thought = message.get("reasoning") or message.get("reasoning_content")
    if isinstance(thought, str):
        tokens += measure(thought)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        tokens += sum(
            _CALL_MARKS + _function_tokens(call.get("function"), measure) for call in calls if isinstance(call, dict)
        )
    return tokens + _function_tokens(message.get("function_call"), measure)


def _part_tokens(part: Any, measure: _Measure) -> int:
    if isinstance(part, str):
        return measure(part)
    if not isinstance(part, dict):
        return 0
    kind = part.get("type", "text")
    text = part.get(_TEXT_OF_PART.get(kind, "")) if isinstance(kind, str) else None
    return measure(text) if isinstance(text, str) else _MEDIA_TOKENS


def _function_tokens(function: Any, measure: _Measure) -> int:
    if not isinstance(function, dict):
        return 0
    return sum(measure(each if isinstance(each, str) else _json(each)) for each in function.values())


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # a number beyond 64 bits
        return json.dumps(value, ensure_ascii=False)


def _utf8_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _estimate(text: str) -> int:
    return -(-_utf8_bytes(text) // _BYTES_PER_TOKEN)
