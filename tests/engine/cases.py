"""Requests that compare a gateway's tokens with an engine's: what clients send, and known differences."""

from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True)
class Case:
    """One request, without its model.

    Attributes:
        name: What it is about.
        endpoint: Which API.
        body: The request.
        daily: Its tokens hold today's date, so they cannot be kept.
        asked: Only the engine has its tokens, and the gateway asks for them.
    """

    name: str
    endpoint: str
    body: dict[str, Any]
    daily: bool = False
    asked: bool = False


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def text(value: Any, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


def call(name: str, arguments: Any, identity: str = "call_1", **more: Any) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather of a <city> & its "surroundings", ganz genau für Köln & 東京 😀',
        "parameters": {
            "type": "object",
            "required": ["city"],
            "properties": {
                "city": {"type": "string", "enum": ["Köln", "東京", "O'Fallon", "a\nb"]},
                "days": {"type": "integer", "minimum": 0, "maximum": 1.50, "default": None, "big": 1e22, "small": 1e-7},
                "deep": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "boolean"}}]},
            },
            "additionalProperties": False,
        },
    },
}
BARE: dict[str, Any] = {"function": {"name": "noop"}, "type": "function"}
ODD_KEYS: dict[str, Any] = {
    "function": {
        "strict": True,
        "parameters": {"properties": {}, "type": "object", "$schema": "x"},
        "x-unknown": [1, 2],
        "description": "",
        "name": "a_first",
    },
    "x-cache": {"ttl": "1h"},
    "type": "function",
}
TOOLS = [WEATHER, BARE, ODD_KEYS]

_RESULT = {"role": "tool", "tool_call_id": "call_1", "content": '{"t": 3.0, "sky": "bedeckt ☁️"}'}


def _chat(name: str, *messages: dict[str, Any], **fields: Any) -> Case:
    return Case(name, CHAT, {"messages": list(messages), **fields})


def _after_call(name: str, arguments: Any, **fields: Any) -> Case:
    return _chat(
        name,
        user("weather?"),
        assistant(None, tool_calls=[call("get_weather", arguments)]),
        _RESULT,
        tools=[WEATHER],
        **fields,
    )


_SCRIPTS = {
    "german": "Grüße aus Köln, Straße, naïve façade, ß ẞ Ångström",
    "russian": "Привет! Ёлка, щука, объём, съешь ещё этих мягких булок.",
    "greek": "Γειά σου Κόσμε, ΐ ΰ ς — ὦ ἄνδρες Ἀθηναῖοι",
    "hebrew": "שלום עולם, עִבְרִית עם ניקוד",
    "arabic": "مرحبا بالعالم، كيف الحال؟ ١٢٣ لَا إِلٰهَ",
    "hindi": "नमस्ते दुनिया, क्षत्रिय, हिन्दी १२३",
    "thai": "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "chinese": "你好,世界!今天天气怎么样?「引号」《书名》𠮷",
    "japanese": "こんにちは世界。カタカナとひらがなと漢字、ー・ヽ",
    "korean": "안녕하세요 세계, 한국어 ㄱㄴㄷ 한",
    "georgian, armenian, amharic": "გამარჯობა · Բարեւ · ሰላም",
    "tamil, khmer, tibetan, burmese": "வணக்கம் · សួស្តី · བཀྲ་ཤིས · မင်္ဂလာပါ",
}

_PLAIN = [
    _chat("one user message", user("Hi")),
    _chat("system and user", system("Be brief."), user("What is a prefix cache?")),
    _chat("empty user content", user("")),
    _chat("empty system content", system(""), user("x")),
    _chat("empty list content", user([])),
    _chat("assistant content null", user("x"), assistant(None), user("y")),
    _chat("assistant without content", user("x"), {"role": "assistant"}, user("y")),
    _chat("three turns", system("S"), user("1"), assistant("one"), user("2"), assistant("two"), user("3")),
    _chat("no user at all", assistant("unasked")),
    _chat("late system", user("x"), system("late"), user("y")),
    _chat("two systems", system("a"), system("b"), user("y")),
    _chat("developer", {"role": "developer", "content": "dev"}, user("x")),
    _chat("system, then developer", system("a"), {"role": "developer", "content": "dev"}, user("x")),
    _chat("late developer", user("x"), {"role": "developer", "content": [text("d1"), text("d2")]}, user("y")),
    _chat("developer with tools", {"role": "developer", "content": "dev", "tools": [WEATHER]}, user("x")),
    _chat("unknown role", {"role": "critic", "content": "hm", "name": "Zoë"}, user("x")),
    _chat("names", user("named", name="Ann"), assistant("yes", name="Bot"), user("again", name="")),
    _chat("task marker", user("x", task="search")),
    _chat("unknown message keys", user("x", cache_control={"type": "ephemeral"}, x=1)),
    _chat("outer white space", system("  s \n"), user("\n\n  x \t\r\n "), assistant("\n\na\n"), user(" ")),
    _chat("white space runs", user("a" + " " * 40 + "b" + "\n" * 20 + "c" + "\t" * 9 + "d\r\n\r\n" + "\u3000" * 3)),
    _chat("control characters", user("\x00 \x01 \x07 \x1b[31m \x7f \x85 \u2028 \u2029 end")),
    _chat("zero width", user("zero\u200bwidth\u200djoiner\ufeff soft\u00adhyphen nbsp\u00a0thin\u2009")),
    _chat("combining marks", user("e\u0301 vs é, n\u0303 vs ñ, Z\u0351\u036b\u0343, \u1100\u1161\u11a8")),
    _chat("private and unassigned", user("\ue000 \U000e0041 \uffff \U0001fae8 𝔘𝔫𝔦 𐍈")),
    _chat("emoji", user("😀 👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ ☎︎ 🏳️‍🌈 🤷🏽‍♀️ 1️⃣")),
    _chat("special tokens in user text", user("<|im_start|>system\nnot real<|im_end|>\n<|endoftext|> </s> [INST]")),
    _chat("halves of special tokens", user("<|im_start|<|im_end|>|> <| im_end |> <|im_end"), assistant("<|im_end|>")),
    _chat("template syntax", system("{{ messages }} {% raw %} {# no #}"), user("{{ 7*7 }}")),
    _chat("html and entities", user('<b class="x">&nbsp;&amp;</b> \'single\' "double" \\ /')),
    _chat("very long word", user("a" * 700 + " " + "ab" * 200 + " " + "=" * 300)),
    _chat("digits", user("0 12 123 1234 12345 1234567890 3.14159 1,000,000.00 1e-9 0xdeadbeef ½ ² Ⅳ")),
    _chat(
        "code",
        user('def f(x: int) -> str:\n    """Doc."""\n    return f\'{x!r:>10}\'  # ok\n\n\nclass A:\n\tpass\n'),
        assistant("```sql\nSELECT * FROM t WHERE a <> 'b' AND c >= 10; -- done\n```"),
        user('{"a": [1, 2.5, true, null], "b": {"c": "d\\n\\u00e9"}}'),
    ),
    _chat("long text", system("You are thorough. " * 20), user("The quick brown fox jumps over the lazy dog. " * 25)),
    _chat("billing header", system("x-anthropic-billing-header: cch=1;\nYou are a coder."), user("x")),
    _chat("only a billing header", system("x-anthropic-billing-header: cch=1;"), user("x")),
    _chat("billing header part", system([text("x-anthropic-billing-header: 1"), text("S")]), user("x")),
    *(_chat(f"script: {name}", system(f"Antworte. {sample}"), user(sample)) for name, sample in _SCRIPTS.items()),
]

_PARTS = [
    _chat("one part", user([text("only")])),
    _chat("two parts", system([text("s1"), text("s2")]), user([text("part 1"), text("part 2\n")])),
    _chat("parts everywhere", user([text("a")]), assistant([text("b"), text("c")]), user([text("d"), text("")])),
    _chat("parts with extra keys", user([text("a", cache_control={"type": "ephemeral"}, x=1)])),
    _chat("refusal part", user("x"), assistant([{"type": "refusal", "refusal": "no"}]), user("y")),
    _chat("input_text part", user([{"type": "input_text", "text": "in"}, text("t")])),
    _chat("thinking part", user("x"), assistant([{"type": "thinking", "thinking": "hm"}, text("so")]), user("y")),
    _chat("string parts", user(["bare", text("wrapped"), "bare again"])),
    _chat("part without text", user([{"type": "text"}, text("after")])),
    _chat("empty parts", system([text("")]), user([text(""), text("a"), text(""), text(" "), ""])),
    _chat("part with keys of other kinds", user([text("a", name="n", closed=True, data="d"), text("b", ttl=1)])),
]

_TOOLS = [
    _chat("tools", user("weather?"), tools=TOOLS),
    _chat("tools and system", system("Use tools."), user("weather?"), tools=TOOLS),
    _chat("tool_choice none", user("weather?"), tools=TOOLS, tool_choice="none"),
    _chat("tool_choice auto", user("weather?"), tools=[WEATHER], tool_choice="auto"),
    _chat("deferred tool", user("x"), tools=[{**WEATHER, "defer_loading": True}, BARE]),
    _after_call("arguments: compact", '{"city":"Köln","days":3}'),
    _after_call("arguments: spaced", ' {  "city" :\t"K\\u00f6ln" ,\n "days": 3.0 , "e": 1e2, "n": -0.0 } '),
    _after_call(
        "arguments: nested", '{"z": [1, null, true, {"y": {}}, []], "a": "<x> & \'q\' \\"", "😀": "\\ud83d\\ude00"}'
    ),
    _after_call("arguments: numbers", '{"big": 12345678901234567890123, "f": 0.1, "g": 1e22, "h": 1E-7, "nan": NaN}'),
    _after_call("arguments: repeated key", '{"a": 1, "b": 2, "a": 3}'),
    _after_call("arguments: empty", ""),
    _after_call("arguments: broken", '{"city": "Kö'),
    _after_call("arguments: a list", "[1, 2]"),
    _chat(
        "two calls, two results",
        system("Use tools."),
        user("two at once"),
        assistant("calling", tool_calls=[call("get_weather", '{"city": "東京"}'), call("noop", "{}", "c2")]),
        _RESULT,
        {"role": "tool", "tool_call_id": "c2", "content": [text("part one"), text("part two")]},
        assistant("3 degrees"),
        user("and tomorrow?"),
        tools=TOOLS,
    ),
    _chat(
        "call with index and odd key order",
        user("x"),
        {
            "tool_calls": [
                {
                    "index": 0,
                    "type": "function",
                    "function": {"arguments": '{"a": 1}', "name": "noop", "x": 1},
                    "id": "c9",
                }
            ],
            "content": "",
            "refusal": None,
            "role": "assistant",
        },
        {"content": "done", "name": "noop", "tool_call_id": "c9", "role": "tool"},
    ),
    _chat("empty tool_calls", user("x"), assistant("y", tool_calls=[]), user("z")),
    _chat("empty tool result", user("x"), assistant(None, tool_calls=[call("noop", "{}")]), {**_RESULT, "content": ""}),
    _chat(
        "tool result of parts",
        user("x"),
        {"role": "tool", "tool_call_id": "c", "content": [text("a", x=1), text(""), "bare", text("b")]},
    ),
    _chat(
        "tool reference",
        user("x"),
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "tool_reference", "name": "noop"}, text("b")]},
    ),
    _chat(
        "everything in one message",
        user("x"),
        assistant(
            [text("a", x=1)],
            name="Bot",
            task="t",
            reasoning="r",
            tools=[BARE],
            tool_calls=[call("noop", "{}", "c1", index=3)],
        ),
        {"role": "developer", "content": "d", "name": "Dev", "tools": [BARE], "task": "t"},
    ),
    _chat("tool result without id", user("x"), {"role": "tool", "content": "orphan"}),
]

_ARGUMENTS = [
    _chat(
        "continue the final message",
        user("Count."),
        assistant("One, two,"),
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    _chat(
        "continue, with trailing spaces",
        user("Count."),
        assistant("One, two,  \n"),
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    _chat(
        "continue parts",
        user("Count."),
        assistant([text("One,"), text("two")]),
        add_generation_prompt=False,
        continue_final_message=True,
    ),
    _chat("no generation prompt", user("x"), add_generation_prompt=False),
    _chat("add_special_tokens", user("x"), add_special_tokens=True),
    _chat("template argument", user("x"), chat_template_kwargs={"enable_thinking": False}),
    _chat("template arguments unknown and null", user("x"), chat_template_kwargs={"foo": [1], "enable_thinking": None}),
    _chat("template argument against the API", user("x"), chat_template_kwargs={"add_generation_prompt": False}),
    _chat("reasoning_effort", user("x"), reasoning_effort="high"),
    _chat("reasoning_effort none", user("x"), reasoning_effort="none"),
    _chat(
        "reasoning_effort against enable_thinking",
        user("x"),
        reasoning_effort="none",
        chat_template_kwargs={"enable_thinking": True},
    ),
    _chat("documents", user("x"), documents=[{"title": "T & t", "text": "Ünï"}, {"title": "", "text": "2"}]),
    _chat(
        "reasoning of earlier turns",
        user("1"),
        assistant("a", reasoning="because\n"),
        user("2"),
        assistant("<think>\nhidden\n</think>\n\nvisible"),
        user("3"),
        assistant(None, reasoning_content="tool needed", tool_calls=[call("noop", "{}")]),
        {**_RESULT, "content": "ok"},
    ),
    _chat("reasoning under both names", user("1"), assistant("a", reasoning="new", reasoning_content="old")),
    _chat("truncated", user("one two three four five " * 8), truncate_prompt_tokens=20),
    _chat("truncated on the left", user("one two " * 20), truncate_prompt_tokens=20, truncation_side="left"),
    _chat("truncated on the right", user("one two " * 20), truncate_prompt_tokens=20, truncation_side="right"),
    Case(
        "truncated to the context",
        CHAT,
        {"messages": [user("one two " * 20)], "truncate_prompt_tokens": -1},
        asked=True,
    ),
    Case(
        "date in the template", CHAT, {"messages": [user("x")], "chat_template_kwargs": {"show_date": True}}, daily=True
    ),
]

_COMPLETIONS = [
    Case("completion: text", COMPLETIONS, {"prompt": "Once upon a time, "}),
    Case(
        "completion: special tokens", COMPLETIONS, {"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"}
    ),
    Case("completion: unicode", COMPLETIONS, {"prompt": "日本語 👩‍👩‍👧‍👦 e\u0301 \u2028"}),
    Case("completion: no special tokens", COMPLETIONS, {"prompt": "Once", "add_special_tokens": False}),
    Case("completion: list of texts", COMPLETIONS, {"prompt": ["one", "two two", "drei"]}),
    Case("completion: ids", COMPLETIONS, {"prompt": [1, 2, 300, 4000]}),
    Case("completion: lists of ids", COMPLETIONS, {"prompt": [[5, 6, 7], [8]]}),
    Case("completion: truncated", COMPLETIONS, {"prompt": "one two three " * 10, "truncate_prompt_tokens": 7}),
    Case("completion: truncated ids", COMPLETIONS, {"prompt": list(range(40, 60)), "truncate_prompt_tokens": 7}),
]

CASES: list[Case] = [*_PLAIN, *_PARTS, *_TOOLS, *_ARGUMENTS, *_COMPLETIONS]

REFUSED: list[Case] = [
    _chat("part without a type", user([{"text": "bare"}])),
    _chat("user content null", user(None), assistant("What?"), user("x")),
    _chat("empty tools", user("x"), tools=[]),
    _chat("both prompts at once", user("x"), add_generation_prompt=True, continue_final_message=True),
    _chat("unknown tool", user("x"), tools=[BARE], tool_choice={"type": "function", "function": {"name": "other"}}),
    _chat("arguments as an object", user("x"), assistant(None, tool_calls=[call("noop", {"a": 1})])),
    _chat("unknown part", user([{"type": "hologram", "hologram": "x"}])),
    _chat(
        "an image for a text model", user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}])
    ),
    _chat("a template of the client's", user("x"), chat_template="{{ messages[0].content }}"),
    _chat("unknown effort", user("x"), reasoning_effort="immense"),
    _chat("longer than the model's context", user("far too long " * 5000)),
    _chat("odd temperature", user("x"), temperature=-3),
    Case("completion: an id beyond the vocabulary", COMPLETIONS, {"prompt": [1, 2, 9_999_999]}),
    Case("completion: empty text", COMPLETIONS, {"prompt": "", "add_special_tokens": False}),
]
