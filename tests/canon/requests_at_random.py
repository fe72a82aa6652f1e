"""Chat and completion bodies as no client would write them by hand, but as the API lets them through."""

import json
import operator

from hypothesis import strategies as st

ROLES = ["system", "developer", "user", "assistant", "tool", "function", "critic", ""]

PIECES = [
    *["Be brief.", "You are a helper.", "x", "é", "e\u0301", "日本語", "\u200b", "\ufeff", "\u200d", "😀", "ß"],
    *[" ", "  ", "\t", "\n", "\r\n", "\r", "\n\n", "\n\n\n\n", " \n", "    indented\n", "a\tb\t\n"],
    *[
        "```\n",
        "```python\n",
        "~~~\n",
        "<pre>",
        "</pre>",
        "<code>",
        "<document>\n",
        "</document>\n",
        "> ",
        "| a | b |\n",
    ],
    *["Current time: 2026-11-21 10:02\n", "Today is 2026-11-21.", "Date: 2024-03-12\n", "dated 12 March 2024", '"'],
    *["request id: 3f2b8c1e-0d4a-4b7e-9a51-0c2d3e4f5a6b\n", "[context 1]", "[Current context: what the marks above"],
    *[
        "[End of context]",
        "- one\n",
        "@@ -1 +1 @@\n",
        "User: hi\n",
        "x-anthropic-billing-header: cc=1\n",
        "\\",
        "\\u00e9",
    ],
]
"""What prompts are made of here: all that some rule looks for."""

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def texts():
    return st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8).map("".join)


def parts():
    return st.one_of(
        texts(),
        st.fixed_dictionaries(
            {"type": st.just("text"), "text": texts()}, optional={"cache_control": st.just({"type": "ephemeral"})}
        ),
        st.fixed_dictionaries(
            {"type": st.just("image_url"), "image_url": st.just({"url": "data:image/png;base64,AA"})}
        ),
        st.fixed_dictionaries({"type": st.sampled_from(["text", "hologram", 7, None]), "text": ANYTHING}),
        ANYTHING,
    )


def contents():
    return st.none() | texts() | st.lists(parts(), max_size=3)


def arguments():
    """Arguments of a tool call: mostly an object as JSON, in any order of its keys."""
    objects = st.dictionaries(st.sampled_from(["b", "a", "path", "Z", "é", ""]), ANYTHING, max_size=4)
    return st.one_of(
        st.builds(
            json.dumps, objects, ensure_ascii=st.booleans(), separators=st.sampled_from([(",", ":"), (", ", ": ")])
        ),
        st.sampled_from(['{"b":1,"a":2,"b":3}', '{"b":', "", "[]", '{"b": 1e5, "a": [{"d": 1.0, "c": -0}]}', " {} "]),
        ANYTHING,
    )


def tool_calls():
    call = st.fixed_dictionaries(
        {},
        optional={
            "id": st.sampled_from(["call_1", "call_2"]),
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": st.sampled_from("fg")}, optional={"arguments": arguments()})
            | ANYTHING,
        },
    )
    return st.lists(call | ANYTHING, max_size=3) | ANYTHING


def messages():
    """One message: an object with a role that is text; of its content the outer form is right, and nothing else."""
    return st.fixed_dictionaries(
        {"role": st.sampled_from(ROLES)},
        optional={
            "content": contents(),
            "name": st.sampled_from(["ada", "bob"]),
            "tool_calls": tool_calls(),
            "tool_call_id": st.just("call_1"),
            "reasoning_content": texts(),
            "weight": ANYTHING,
        },
    )


def conversations():
    """Messages in about the order of real conversations."""
    leading = st.fixed_dictionaries({"role": st.sampled_from(["system", "developer"]), "content": texts()})
    turn = st.sampled_from(["system", "user", "assistant", "developer", "tool"])
    plain = st.fixed_dictionaries({"role": turn, "content": texts()})
    return st.builds(operator.add, st.lists(leading, max_size=4), st.lists(plain | messages(), min_size=1, max_size=7))


def schemas():
    names = st.sampled_from(
        ["type", "properties", "required", "description", "title", "items", "enum", "default", "anyOf", "$defs", "zip"]
    )
    return st.recursive(
        st.sampled_from([{"type": "string"}, {"enum": ["b", "a"], "type": "string"}, True, {}]) | ANYTHING,
        lambda inner: st.dictionaries(names, inner | st.lists(inner, max_size=2), max_size=4),
        max_leaves=8,
    )


def tools():
    function = st.dictionaries(
        st.sampled_from(["parameters", "description", "strict", "name", "extra"]),
        schemas() | st.sampled_from(["search", "add", "zip"]),
        max_size=4,
    )
    tool = st.dictionaries(
        st.sampled_from(["function", "type", "cache_control", "name", "input_schema"]),
        function | st.sampled_from(["function", "web_search", "add"]),
        max_size=4,
    )
    named = st.builds(
        lambda name, schema: {"function": {"parameters": schema, "name": name}, "type": "function"},
        st.sampled_from(["search", "add", "zip", "Add"]),
        schemas(),
    )
    return st.lists(named | tool | ANYTHING, max_size=5)


def chats():
    """Bodies of ``/v1/chat/completions``."""
    return st.fixed_dictionaries(
        {"model": st.just("m"), "messages": conversations()},
        optional={
            "tools": tools() | st.none(),
            "tool_choice": st.sampled_from(["auto", {"type": "function", "function": {"name": "zip"}}]),
            "functions": tools(),
            "prompt": texts(),
            "prompt_cache_key": ANYTHING,
            "max_tokens": st.integers(-5, 500) | ANYTHING,
            "stream": st.booleans(),
        },
    )


def completions():
    """Bodies of ``/v1/completions``."""
    return st.fixed_dictionaries(
        {"model": st.just("m"), "prompt": texts() | st.lists(texts() | st.integers(0, 9) | ANYTHING, max_size=3)},
        optional={"tools": tools(), "suffix": texts()},
    )
