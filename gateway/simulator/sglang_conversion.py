"""SGLang's way from a request to a prompt, as of 0.5.23. Not the gateway's own, so that both can be compared.

From ``sglang/srt/entrypoints/openai``: ``serving_chat.py`` and ``protocol.py``. Text only.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.core.errors import TokenizerUnavailable
from gateway.core.request import Endpoint
from gateway.tokenize.local import LocalEncoder

_ALWAYS = ("description", "parameters")

_LOOP = re.compile(r"for \w+ in (?:message|msg|m)(?:\.content|\[.content.\])|image|audio|video|vision")


def encode_as_sglang(encoder: LocalEncoder, endpoint: Endpoint, fields: Mapping[str, Any]) -> tuple[bytes, ...]:
    """As ``LocalEncoder.encode``, with the encoder's tokenizer and chat template."""
    if endpoint is not Endpoint.CHAT:
        return encoder.encode(endpoint, {name: value for name, value in fields.items() if name == "prompt"})
    template = encoder.template
    assert template is not None
    try:
        joins = _LOOP.search(template.source) is None
        messages = [_message(message, joins=joins) for message in fields["messages"]]
        tools = _tools(fields) or None
        options = {"add_generation_prompt": True, **(fields.get("chat_template_kwargs") or {})}
        if (effort := fields.get("reasoning_effort")) is not None:
            thinks = effort != "none"
            options = {"thinking": thinks, "enable_thinking": thinks, "reasoning_effort": effort} | options
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TokenizerUnavailable(f"invalid request: {error!r}") from error
    begun = ""
    if messages[-1]["role"] == "assistant" and isinstance(messages[-1]["content"], str):
        begun = messages.pop()["content"]
        if not fields.get("continue_final_message"):
            messages.append({"role": "user", "content": begun})
            begun = ""
    text = template.render_reference(messages, tools, options)
    return (encoder.encode_text(text) + encoder.encode_text(begun),)


def _message(message: Any, *, joins: bool) -> dict[str, Any]:
    content = message.get("content") or ""
    if isinstance(content, list):
        texts = [part["text"] for part in content if part["type"] == "text"]
        joined = joins or message["role"] == "tool"
        content = " ".join(texts) if joined else [{"type": "text", "text": text} for text in texts]
    shown = {"role": message["role"].lower(), "content": content}
    if message["role"] == "user":
        return shown
    for name in ("tool_call_id", "name", "reasoning_content"):
        if message.get(name) is not None:
            shown[name] = message[name]
    calls = message.get("tool_calls")
    return shown if calls is None else shown | {"tool_calls": [_call(call) for call in calls]}


def _call(call: Any) -> dict[str, Any]:
    name, arguments = call["function"].get("name"), call["function"].get("arguments")
    if isinstance(arguments, str):
        arguments = {**orjson.loads(arguments)}
    function = {"name": name, "arguments": arguments}
    return {"id": call.get("id"), "index": call.get("index"), "type": "function", "function": function}


def _tools(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    choice, shown = fields.get("tool_choice"), []
    for tool in [] if choice == "none" else fields.get("tools") or ():
        given = {name: value for name, value in tool["function"].items() if value is not None or name in _ALWAYS}
        function = {name: given.get(name) for name in (*given, *_ALWAYS) if name in (*_ALWAYS, "name", "strict")}
        if isinstance(choice, str | None) or choice["function"]["name"] == function["name"]:
            shown.append({"type": "function", "function": function, "defer_loading": None})
    return shown
