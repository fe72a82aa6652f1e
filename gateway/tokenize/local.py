"""The local encoder: a model's tokenizer and chat template in this process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.core.engine_facts import EngineKind
from gateway.core.errors import TokenizerUnavailable
from gateway.core.numbers import whole
from gateway.core.prompt import TOKEN_BYTES, Message
from gateway.core.request import Endpoint
from gateway.engines import ChatRules
from gateway.engines.vllm_prompts import VllmRules
from gateway.tokenize.backends import TokenBackend, pack
from gateway.tokenize.chat_template import ChatTemplate
from gateway.tokenize.later_system import later_system
from gateway.tokenize.message_tokens import MessageTokens

_CHAT = Endpoint.CHAT  # looking up a member of an enum takes as long as several other look-ups
_IDS_AT_ONCE = 65_536
_RENDERING = frozenset(
    {
        *("chat_template", "chat_template_kwargs", "tools", "documents", "reasoning_effort", "add_generation_prompt"),
        *("continue_final_message", "add_special_tokens", "reasoning", "input_ids"),
    }
)
"""Members of a request besides its messages that change how it is rendered and encoded."""


class LocalEncoder:
    """Requests to token ids, equal to the engine's.

    Attributes:
        rules: What the engine gives to the chat template; ``use`` changes it.
        by_message: Encodes conversations by their turns; None: each conversation is encoded as a whole.
        tokenizer_id: Hash of the tokenizer.
        template_hash: Hash of the chat templates and their default arguments; empty without a template.
        tells_time: Whether the chat template prints the current time.
        tools_first: Whether it prints tools in front of the system message.
        later_system: How it takes system messages inside a conversation.
    """

    def __init__(
        self,
        *,
        tokens: TokenBackend,
        decode: Callable[[list[int]], str],
        template: ChatTemplate | None,
        tools_template: ChatTemplate | None,
        template_arguments: Mapping[str, Any],
        tokenizer_id: str,
        template_hash: str,
        by_message: Callable[[ChatRules], MessageTokens | None] = lambda _: None,
    ) -> None:
        self.tokens = tokens
        self.template = template
        self.tokenizer_id = tokenizer_id
        self.template_hash = template_hash
        self.tells_time = template is not None and template.tells_time
        self._decode = decode
        self._tools_template = tools_template or template
        self.tools_first = self._tools_template is not None and self._tools_template.tools_first
        self._template_arguments = template_arguments
        self._by_message_for = by_message
        self.rules: ChatRules = VllmRules()
        self.by_message = by_message(self.rules)
        self.later_system = later_system(self._rendered)

    def use(self, rules: ChatRules) -> None:
        """Encode by other rules from now on."""
        before, self.rules = self.rules, rules
        if (before.engine, before.content_format) != (rules.engine, rules.content_format):
            self.by_message = self._by_message_for(rules)
            self.later_system = later_system(self._rendered)

    @property
    def description(self) -> dict[str, str]:
        """Which implementations are in use, for the log."""
        return {
            "tokenizer_backend": self.tokens.name,
            "template_backend": self.template.backend if self.template else "none",
            "content_format": self.template.content_format if self.template else "none",
        }

    def encode(
        self, endpoint: Endpoint, fields: Mapping[str, Any], other: ChatRules | None = None
    ) -> tuple[bytes, ...]:
        """Token ids of every prompt of a request, as little-endian u32.

        Args:
            endpoint: Its API.
            fields: Its body, parsed.
            other: Rules to use in place of ``rules``.

        Raises:
            TokenizerUnavailable: the prompt cannot be encoded here: media, a form the engine will refuse, or a request
                that brings a template of its own.
        """
        rules = other or self.rules
        if endpoint is _CHAT:
            ids, messages = None, fields.get("messages")
            if not isinstance(messages, list):
                raise TokenizerUnavailable("messages is not a list")
            if (
                other is None
                and self.by_message is not None
                and _RENDERING.isdisjoint(fields)
                and (rules.engine is EngineKind.VLLM or not _ends_with_answer(messages))
            ):
                ids = self.by_message.encode(messages)
            parts: tuple[bytes, ...] = (self._encode_chat(messages, fields, rules) if ids is None else ids,)
        else:
            parts = self._encode_completion(fields, rules)
        cut = "truncate_prompt_tokens" in fields and "truncate_prompt_tokens" not in rules.ignored
        return _truncated(parts, fields) if cut else parts

    def encode_text(self, text: str) -> bytes:
        """Token ids of a text as it stands, without start or end tokens."""
        return self.tokens.encode(text, add_special_tokens=False)

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, special tokens left out."""
        return self._decode(ids)

    def _encode_chat(self, messages: list[Any], fields: Mapping[str, Any], rules: ChatRules) -> bytes:
        """Token ids of a conversation that is encoded as a whole."""
        if rules.engine is EngineKind.SGLANG and fields.get("input_ids"):
            return _packed(fields["input_ids"])
        if fields.get("chat_template") and "chat_template" not in rules.ignored:
            raise TokenizerUnavailable("the request brings a chat template of its own")
        tools = rules.tools(fields)
        template = self.template if tools is None else self._tools_template
        if template is None:
            raise TokenizerUnavailable("the model has no chat template")
        made = rules.messages(messages, template.format_for(rules), knows_developer=template.knows_developer)
        rendered, begun = rules.begun(fields, made)
        arguments = rules.arguments(fields, self._template_arguments)
        try:
            text = template.render(rendered, tools, arguments)
        except TokenizerUnavailable:
            if rules.engine is not EngineKind.SGLANG or not tools:
                raise
            text = template.render(rendered, [tool["function"] for tool in tools], arguments)
        special = fields.get("add_special_tokens") is True and "add_special_tokens" not in rules.ignored
        return self.tokens.encode(text, add_special_tokens=special) + (self._begun(begun, template) if begun else b"")

    def _rendered(self, messages: Sequence[Message]) -> str:
        """The text of a conversation without tools."""
        if (template := self._tools_template) is None:
            raise TokenizerUnavailable("the model has no chat template")
        made = self.rules.messages(messages, template.format_for(self.rules), knows_developer=True)
        return template.render(made, None, self.rules.arguments({}, self._template_arguments))

    def _begun(self, text: str, template: ChatTemplate) -> bytes:
        """Token ids of the beginning of an answer: SGLang encodes it as a prompt, and leaves out a start token."""
        ids = self.tokens.encode(text, add_special_tokens=True)
        start = self.tokens.encode(template.special_tokens.get("bos_token", ""), add_special_tokens=False)
        return ids.removeprefix(start) if len(start) == TOKEN_BYTES else ids

    def _encode_completion(self, fields: Mapping[str, Any], rules: ChatRules) -> tuple[bytes, ...]:
        prompt = fields.get("prompt")
        special = fields.get("add_special_tokens") is not False or "add_special_tokens" in rules.ignored
        if isinstance(prompt, str):
            return (self.tokens.encode(prompt, add_special_tokens=special),)
        if isinstance(prompt, list) and prompt and all(isinstance(item, str) for item in prompt):
            return tuple(self.tokens.encode(item, add_special_tokens=special) for item in prompt)
        return _prompts_of_ids(prompt)


def _ends_with_answer(messages: list[Any]) -> bool:
    """Whether the last message is the assistant's, which SGLang does not render as it is."""
    return bool(messages) and isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant"


def _truncated(parts: tuple[bytes, ...], fields: Mapping[str, Any]) -> tuple[bytes, ...]:
    """The prompts as a request has them cut."""
    limit = whole(fields["truncate_prompt_tokens"])
    if limit == -1:
        raise TokenizerUnavailable("the prompt is cut to the engine's context limit, which only the engine knows")
    if limit is None or limit <= 0:
        return parts
    keep = TOKEN_BYTES * limit
    left = fields.get("truncation_side") != "right"
    return tuple(part[-keep:] if left else part[:keep] for part in parts)


def given_ids(endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Prompts that a completion request brings as token ids, which need no tokenizer.

    Raises:
        TokenizerUnavailable: it brings text, or is none.
    """
    if endpoint is _CHAT:
        raise TokenizerUnavailable("the model has no tokenizer in this process")
    parts = _prompts_of_ids(fields.get("prompt"))
    return _truncated(parts, fields) if "truncate_prompt_tokens" in fields else parts


def _prompts_of_ids(prompt: Any) -> tuple[bytes, ...]:
    if not isinstance(prompt, list) or not prompt:
        raise TokenizerUnavailable("prompt is neither text nor token ids")
    return (_packed(prompt),) if isinstance(prompt[0], int) else tuple(map(_packed, prompt))


def _packed(ids: Any) -> bytes:
    """Token ids of a prompt, in steps: one call for a million tokens would hold the interpreter lock for long."""
    if not isinstance(ids, list) or not ids:
        raise TokenizerUnavailable("prompt is neither text nor token ids")
    packed = bytearray()
    for start in range(0, len(ids), _IDS_AT_ONCE):
        piece = ids[start : start + _IDS_AT_ONCE]
        if set(map(type, piece)) != {int}:
            raise TokenizerUnavailable("prompt is neither text nor token ids")
        try:
            packed += pack(piece)
        except OverflowError as error:
            raise TokenizerUnavailable("prompt holds a number that is no token id") from error
    return bytes(packed)
