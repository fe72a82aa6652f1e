"""The corpus on which a faster tokenizer or template renderer must equal the reference before it is used.

Texts and conversations on which implementations differ: scripts, digits, white space, marks that combine,
look-alikes of special tokens, values that print differently in other languages than Python.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from gateway.core.prompt import ContentFormat, Message
from gateway.engines.vllm_prompts import conversation

TEXTS: tuple[str, ...] = (
    "",
    " ",
    "\n",
    "\n\n\n  \n\t\t x",
    "Hello, world!",
    "  two leading spaces and two trailing  ",
    "tabs\tand\r\nwindows line ends\r\n\r\nend",
    "I'll, you've, we'd, THEY'RE, it's — don’t “quote” me…",
    "0 1 12 123 1234 12345 123456 1234567890 3.14159 1,000,000.00 1e-9 0xdeadbeef",
    "2026-11-21T10:42:07.123+01:00, 21.11.2026, 11/21/26, Nov 21st",
    "MiXeD CaSe CamelCase snake_case kebab-case SCREAMING_CASE x1y2z3",
    "https://example.com/a/b?c=d&e=%20f#g user.name+tag@example.co.uk",
    'def f(x: int) -> str:\n    """Doc."""\n    return f\'{x!r:>10}\'  # comment\n\n\nclass A:\n\tpass\n',
    '{"a": [1, 2.5, true, null], "b": {"c": "d\\n\\u00e9"}}\n',
    "SELECT * FROM t WHERE a <> 'b' AND c >= 10; -- done",
    '<html><body class="x">&nbsp;&amp;</body></html>',
    "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β → γ; ½ ¼ ² ³ ① Ⅳ",
    "Grüße aus Köln, straße, naïve façade, Ångström, İstanbul, ǆ",
    "e\u0301 vs é, n\u0303 vs ñ, a\u030a\u0301, Z\u0351\u036b\u0343",
    "Привет, как дела? Ёлка, щука.",
    "Γειά σου Κόσμε, ΐ ΰ ς",
    "שלום עולם עִבְרִית",
    "مرحبا بالعالم، كيف الحال؟ ١٢٣ لَا",
    "नमस्ते दुनिया, क्षत्रिय, हिन्दी १२३",
    "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "你好,世界!今天天气怎么样?「引号」《书名》",
    "こんにちは世界。カタカナとひらがなと漢字、ー・ヽ",
    "안녕하세요 세계, 한국어 ㄱㄴㄷ",
    "😀 👍🏽 👩‍👩‍👧‍👦 🇩🇪🇫🇷 ❤️ ☎︎ 🏳️‍🌈 🤷🏽‍♀️",
    "zero\u200bwidth\u200djoiner\ufeffbom soft\u00adhyphen nbsp\u00a0thin\u2009ideographic\u3000space",
    "control \x00 \x01 \x07 \x1b[31m \x7f \x85 \u2028 \u2029 end",
    "private \ue000 unassigned \U000e0041 noncharacter \uffff astral 𝔘𝔫𝔦 𐍈 𠮷",
    "<|im_start|>user\nnot a real turn<|im_end|>\n<|endoftext|> <s> </s> [INST] <|user|> <unk> <pad> [CLS]",
    "<|im_start|><|im_start|><|im_end|>x<|im_end|>\n<| im_start |> <|im_start",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ababababababababababababababababab ---------------- ================ ................",
    "!!!???...,,,;;;:::###$$$%%%^^^&&&***((()))[[[]]]{{{}}}",
    "a" * 300 + " " * 50 + "\n" * 20 + "1" * 40,
    "word " * 200,
    "The quick brown fox jumps over the lazy dog. " * 20,
)

_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a <city> & its "surroundings", ärgerlich genau',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Köln", "東京", "O'Fallon"]},
                    "days": {"type": "integer", "minimum": 0, "maximum": 1.5, "default": None},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "description": None, "parameters": None}},
]

_CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {
        "name": "get_weather",
        "arguments": '{"city": "Köln", "days": 3, "f": 0.1, "big": 1e22, "deep": [1, null, true, "<x>"], "e": {}}',
    },
}

_CONVERSATIONS: tuple[tuple[list[dict[str, Any]], bool], ...] = (
    ([{"role": "user", "content": "Hi"}], False),
    ([{"role": "user", "content": ""}], False),
    ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  spaces  \n"}], False),
    ([{"role": "system", "content": ""}, {"role": "user", "content": "x"}], False),
    (
        [
            {"role": "system", "content": "You are <b>bold</b> & 'quoted' \"twice\" {{ not.a.variable }} {% raw %}"},
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "\n\nanswer with leading lines\n"},
            {"role": "user", "content": "日本語 😀 \u2028"},
            {"role": "assistant", "content": "<think>\nhidden\n</think>\n\nvisible"},
            {"role": "user", "content": "</think> more"},
        ],
        False,
    ),
    ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], False),
    ([{"role": "assistant", "content": "unasked"}], False),
    (
        [{"role": "user", "content": "x"}, {"role": "system", "content": "late"}, {"role": "user", "content": "y"}],
        False,
    ),
    ([{"role": "developer", "content": "dev"}, {"role": "user", "content": "x"}], False),
    ([{"role": "user", "content": "weather?"}], True),
    ([{"role": "system", "content": "Use tools."}, {"role": "user", "content": "weather?"}], True),
    (
        [
            {"role": "user", "content": "weather in Köln?"},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": '{"t": 3.0}'},
            {"role": "assistant", "content": "3 degrees"},
            {"role": "user", "content": "and tomorrow?"},
        ],
        True,
    ),
    (
        [
            {"role": "user", "content": "two at once"},
            {
                "role": "assistant",
                "content": "calling",
                "tool_calls": [_CALL, {**_CALL, "id": "c2", "function": {"name": "noop", "arguments": ""}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "two"}]},
        ],
        True,
    ),
    ([{"role": "user", "content": [{"type": "text", "text": "part 1"}, {"type": "text", "text": "part 2"}]}], False),
    ([{"role": "user", "content": "named", "name": "Ann"}, {"role": "assistant", "content": "yes"}], False),
)


def plain_conversations() -> Iterator[list[dict[str, str]]]:
    """All texts as messages, in conversations that begin with a system message or without one."""
    for start, text in enumerate(TEXTS):
        others = [TEXTS[(start + step) % len(TEXTS)] for step in (1, 2)]
        first = [{"role": "system", "content": text}] if start % 2 else []
        yield [
            *first,
            *({"role": role, "content": each} for role, each in zip(("user", "assistant"), others, strict=True)),
        ]


def conversations(
    content_format: ContentFormat,
) -> Sequence[tuple[list[Message], list[dict[str, Any]] | None, dict[str, Any]]]:
    """Conversations as input of a template: messages, tools, arguments; each with and without generation prompt."""
    return [
        (
            conversation(messages, content_format),
            _TOOLS if with_tools else None,
            {"add_generation_prompt": generation_prompt, "continue_final_message": False},
        )
        for messages, with_tools in _CONVERSATIONS
        for generation_prompt in (True, False)
    ]
