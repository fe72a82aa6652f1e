"""Converts a request body into comparable text: messages, tools and template arguments.

Lenient: any body that an engine accepts can be read. The prompts of a completion become messages of role ``prompt``.
``PromptPair`` holds two prompts to compare.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from gateway.canon.document_places import DocumentPlace
from gateway.core.explanation import ReplyChoice
from gateway.core.request import Endpoint

PROMPT_ROLE = "prompt"
"""Role of a completion's prompt."""

_ID_LETTERS = str.maketrans("0123456789", "abcdefghij")
_MAX_IDS = 16_384
_PLAIN_FIELDS = 2
"""Fields of a message with only role and content, as most have."""

LEADING_ROLES = frozenset({"system", "developer"})

_ARGUMENTS = (
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "documents",
    "reasoning_effort",
    "tool_choice",
    "truncate_prompt_tokens",
    "prompt_cache_key",
    "response_format",
    "verbosity",
    "service_tier",
)
"""Fields besides messages and tools that engines pass to the chat template or use in tokenization; and those that the
vendors' cache diagnostics name."""


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call in the history.

    Attributes:
        name: The function's name.
        arguments: Its arguments as sent.
        canonical: The same as JSON with sorted keys; unchanged if they are no JSON.
    """

    name: str
    arguments: str
    canonical: str


class Message(msgspec.Struct, frozen=True, cache_hash=True):
    """One message.

    Attributes:
        role: Its role.
        text: Its text; the texts of several content parts with line ends between.
        form: Form of its content: ``string``, ``parts`` or ``none``.
        others: Types of its non-text content parts, in order.
        name: Its ``name``, empty for none.
        calls: Its tool calls.
        reasoning: Its reasoning, empty for none.
        tool_call_id: Id of the tool call it answers, empty for none.
    """

    role: str
    text: str
    form: str = "string"
    others: tuple[str, ...] = ()
    name: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    tool_call_id: str = ""


class Tool(msgspec.Struct, frozen=True, cache_hash=True):
    """One tool.

    Attributes:
        name: The function's name.
        raw: The whole tool as JSON, keys in their order.
        canonical: The same with sorted keys.
    """

    name: str
    raw: str
    canonical: str


class PromptText(msgspec.Struct, frozen=True):
    """The text of a prompt in parts.

    Attributes:
        messages: Its messages, in order.
        tools: Its tools, in order.
        arguments: Other arguments of the template, by field, as JSON with sorted keys; only fields that are present.
        has_ids: Whether a prompt was given as token ids, so its text consists of substitute words.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    arguments: Mapping[str, str] = msgspec.field(default_factory=dict)
    has_ids: bool = False

    @property
    def leading(self) -> tuple[Message, ...]:
        """The messages before the first one that is no system message."""
        count = 0
        for message in self.messages:
            if message.role not in LEADING_ROLES:
                break
            count += 1
        return self.messages[:count]


def prompt_text(endpoint: str, fields: Mapping[str, Any]) -> PromptText:
    """The parts of a request body.

    Args:
        endpoint: Path of the request.
        fields: The body's.
    """
    arguments = {name: _canonical(fields[name]) for name in _ARGUMENTS if fields.get(name) is not None}
    if endpoint != Endpoint.CHAT:
        prompt = fields.get("prompt")
        has_ids = isinstance(prompt, list) and any(isinstance(each, int | list) for each in prompt)
        messages = tuple(Message(PROMPT_ROLE, text) for text in _prompts(prompt))
        return PromptText(messages, (), arguments, has_ids)
    messages = tuple([_message(each) for each in _items(fields.get("messages")) if isinstance(each, dict)])
    tools = tuple([_tool(each) for each in _items(fields.get("tools")) if isinstance(each, dict)])
    return PromptText(messages, tools, arguments)


def _prompts(prompt: Any) -> Sequence[str]:
    """The texts of a completion's prompts.

    A prompt of token ids becomes a text with one substitute word per id: comparable, but without numbers.
    """
    if isinstance(prompt, str):
        return (prompt,)
    items = _items(prompt)
    if items and isinstance(items[0], int):
        return (_of_ids(items),)
    return [each if isinstance(each, str) else _of_ids(_items(each)) for each in items]


def _of_ids(ids: Sequence[Any]) -> str:
    return " ".join(map(str, ids[:_MAX_IDS])).translate(_ID_LETTERS)


def _message(message: Mapping[str, Any]) -> Message:
    content, role = message.get("content"), message.get("role")
    if len(message) == _PLAIN_FIELDS and isinstance(content, str) and isinstance(role, str):
        return Message(role, content)
    texts: list[str] = []
    others: list[str] = []
    for part in [content] if isinstance(content, str) else _items(content):
        text = part if isinstance(part, str) else _part_text(part)
        if text is None:
            others.append(_string(part.get("type")) if isinstance(part, dict) else "")
        else:
            texts.append(text)
    return Message(
        role=_string(role),
        text="\n".join(texts),
        form="string" if isinstance(content, str) else "parts" if isinstance(content, list) else "none",
        others=tuple(others),
        name=_string(message.get("name")),
        calls=tuple(_call(call) for call in _items(message.get("tool_calls")) if isinstance(call, dict)),
        reasoning=_string(message.get("reasoning")) or _string(message.get("reasoning_content")),
        tool_call_id=_string(message.get("tool_call_id")),
    )


def _part_text(part: Any) -> str | None:
    if not isinstance(part, dict):
        return None
    for key in ("text", "refusal", "thinking"):
        if isinstance(part.get(key), str):
            return str(part[key])
    return None


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        text = _canonical(arguments) if arguments is not None else ""
        return ToolCall(_string(function.get("name")), text, text)
    try:
        canonical = _canonical(orjson.loads(arguments))
    except orjson.JSONDecodeError:
        canonical = arguments
    return ToolCall(_string(function.get("name")), arguments, canonical)


def _tool(tool: Mapping[str, Any]) -> Tool:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    try:
        raw = json.dumps(tool, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        raw = ""
    return Tool(_string(name), raw, _canonical(tool))


def _canonical(value: Any) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # a number beyond 64 bits, or nested deeper than orjson writes
        pass
    try:
        return json.dumps(value, sort_keys=True)
    except RecursionError:
        return ""


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


_OPENING_MESSAGES = 6


class PromptPair(msgspec.Struct, frozen=True):
    """Two prompts to compare.

    Attributes:
        before: The earlier prompt.
        after: The later one.
        before_source: Client family of the earlier.
        after_source: Client family of the later.
        same_conversation: Whether the later prompt continues the conversation of the earlier.
        replies: Replies of the engine to the earlier.
        places: How the operator declares documents.
    """

    before: PromptText
    after: PromptText
    before_source: str
    after_source: str
    same_conversation: bool
    replies: Sequence[ReplyChoice]
    places: Sequence[DocumentPlace] = ()

    @property
    def sources_differ(self) -> bool:
        """Whether the prompts come from two client families."""
        return self.before_source != self.after_source

    @property
    def between(self) -> str:
        """Both client families, for the end of a sentence; empty if one family sent both prompts."""
        return f" ({shown(self.after_source)} against {shown(self.before_source)})" if self.sources_differ else ""


def shown(name: str) -> str:
    """A client's name made safe for a sentence: printable, one line, at most 60 characters."""
    clean = "".join(character if character.isprintable() else "?" for character in name[:61])
    return clean if len(clean) <= 60 else clean[:59] + "…"


def counted(count: int, noun: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def questions_in_front(text: PromptText) -> int:
    """Number of user messages directly after the leading ones, among the prompt's first six messages."""
    count = 0
    for message in text.messages[len(text.leading) : _OPENING_MESSAGES]:
        if message.role != "user":
            break
        count += 1
    return count
