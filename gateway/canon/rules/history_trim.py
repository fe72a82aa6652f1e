"""``history-trim``: removes the oldest messages of a conversation that is too long for the model, in large steps.

The position of the cut depends only on the messages in front of it, so the rule is stateless, and the cut does not move
while the conversation grows, until the rest no longer fits: then it moves by a whole step.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import orjson

from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext
from gateway.canon.texts import BLOCK_ROLES, leading_messages, messages
from gateway.config.canon_settings import HistoryTrimSettings
from gateway.core.canonical import RuleName
from gateway.core.numbers import whole

_PLAIN_FIELDS = 2
"""Fields of a message with only role and content, as most have."""

_MESSAGE_MARKS = 6
"""Tokens that a chat template adds to a message."""

_CALL_MARKS = 12
"""Tokens that a chat template adds to a tool call."""

_TOOLS_MARKS = 200
"""Tokens of a chat template's instructions for calling tools."""

_MEDIA_TOKENS = 1000
"""Estimate for an image or another part that is not text; only the engine can count it."""

_TEXT_OF_PART = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}

_BYTES_PER_TOKEN = 3
"""Estimate without a tokenizer; for nearly all languages it yields too many tokens rather than too few."""

_Measure = Callable[[str], int]


_MAX_ANSWER_SHARE = 0.25
"""Maximum share of the context that is reserved for the answer."""


class HistoryTrim:
    """Removes messages behind the leading ones, up to a user message. Tool results stay with their calls; the last user
    message and everything behind it are never removed.

    Args:
        settings: Threshold and step.
    """

    name: ClassVar[RuleName] = RuleName.HISTORY_TRIM

    def __init__(self, settings: HistoryTrimSettings) -> None:
        self._settings = settings
        # Share of the tokens that leading messages and tools leave free. A larger step would put the cut in front of
        # the last user message, at another position in every turn.
        self._max_step_share = max(0.5, min(0.9, settings.step / settings.start))

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``. No edits if the context limit is unknown or the prompt is below the threshold."""
        limit = max(given.context_limit, 0)
        # Many clients set max_tokens to all that the prompt leaves free; that is no reason to trim it.
        room = limit - min(_answer_tokens(fields), int(_MAX_ANSWER_SHARE * limit))
        threshold = int(self._settings.start * room)
        # A text has no more tokens than bytes, so a prompt with few bytes need not be tokenized.
        behind = given.behind_tokens * len(messages(fields))
        if threshold <= 0 or _prompt_bytes(fields) + behind < threshold:
            return NOTHING
        measure = _estimate if given.count_tokens is None else given.count_tokens
        sizes = [
            _message_tokens(message, measure) + (given.behind_tokens if message.get("role") in BLOCK_ROLES else 0)
            for message in messages(fields)
        ]
        first = leading_messages(fields)
        room_behind = threshold - _tools_tokens(fields, measure) - sum(sizes[:first])
        excess = sum(sizes[first:]) - room_behind
        points = _cut_points(messages(fields), first)
        if excess < 0 or not points:
            return NOTHING
        step = max(1, min(int(self._settings.step * room), int(self._max_step_share * room_behind)))
        return _cut_out(fields, first, _cut(points, sizes[first:], first, room_behind, step))


def _cut(points: Sequence[int], sizes: Sequence[int], first: int, room: int, step: int) -> int:
    """Index of the message with which the trimmed history begins.

    Replays the cuts as if a request had followed each message, so that the cut does not move while the rest fits.

    Args:
        points: Indexes of messages with which the history may begin.
        sizes: Tokens of the messages of the history.
        first: Index of the first message of the history.
        room: Token limit of the history.
        step: Tokens per step.
    """
    ahead = list(accumulate(sizes, initial=0))
    begins = [ahead[point - first] for point in points]
    cut = gone = known = 0
    for number, tokens in enumerate(ahead[1:], first):
        while known < len(points) and points[known] <= number:
            known += 1
        excess = tokens - room
        if known and excess >= gone:
            # Round the excess up to whole steps, and cut at the first possible message behind it.
            enough = bisect_right(begins, excess, 0, known)
            steps = (begins[enough - 1] if enough else 0) // step + 1
            cut = min(bisect_left(begins, steps * step, 0, known), known - 1)
            gone = begins[cut]
    return points[cut]


def _answer_tokens(fields: Fields) -> int:
    """Maximum number of tokens of the answer that the client requests; 0 if it sets none."""
    for name in ("max_completion_tokens", "max_tokens"):
        tokens = whole(fields.get(name))
        if tokens is not None:
            return max(0, tokens)
    return 0


def _cut_points(found: Sequence[Mapping[str, Any]], first: int) -> list[int]:
    """Indexes of user messages in front of which the history may be cut without separating tool results from calls."""
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
    summary = f"{count} {'message' if count == 1 else 'messages'} left out: the conversation is too long for the model."
    edit = Edit(RuleName.HISTORY_TRIM, "cut", ("messages",), before, before[:first] + before[cut:], summary=summary)
    return Detected((edit,), cut_messages=count)


def _prompt_bytes(fields: Fields) -> int:
    """Number of tokens of the prompt if every byte of its texts is one."""
    chat = messages(fields)
    plain: list[str] = []
    others = 0
    for message in chat:
        content = message.get("content")
        if len(message) == _PLAIN_FIELDS and isinstance(content, str):
            plain.append(content)
        else:
            others += _message_tokens(message, _utf8_bytes)
    # All at once: most prompts are far below the threshold, and this is all that is done for them.
    return _utf8_bytes("".join(plain)) + _MESSAGE_MARKS * len(plain) + others + _tools_tokens(fields, _utf8_bytes)


def _tools_tokens(fields: Fields, measure: _Measure) -> int:
    tools = fields.get("tools")
    return measure(_json(tools)) + _TOOLS_MARKS if tools else 0


def _message_tokens(message: Mapping[str, Any], measure: _Measure) -> int:
    content = message.get("content")
    tokens = _MESSAGE_MARKS
    if isinstance(content, str):
        tokens += measure(content)
        if len(message) == _PLAIN_FIELDS:
            return tokens
    elif isinstance(content, list):
        tokens += sum(_part_tokens(part, measure) for part in content)
    # Some chat templates render reasoning, others do not. It is counted, so that the engine does not refuse the prompt.
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
