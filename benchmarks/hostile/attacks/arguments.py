"""Arguments of tool calls: JSON in a string, which the gateway parses as the engine does."""

import json
from itertools import count

from benchmarks.hostile.attacks.attack import FULL, body, chat, joined, message, repeated


def _called(*arguments: bytes) -> bytes:
    calls = (
        b'{"id":"c%d","type":"function","function":{"name":"f","arguments":%b}}'
        % (n, json.dumps(each.decode()).encode())
        for n, each in enumerate(arguments)
    )
    said = b'{"role":"assistant","content":null,"tool_calls":[%b]}' % b",".join(calls)
    result = b'{"role":"tool","tool_call_id":"c0","content":"done"}'
    return chat(messages=b",".join((message(b"Hi"), said, result, message(b"And?"))))


_SIZE = FULL - 8192

ATTACKS = (
    body(
        "arguments-lists",
        "arguments with 4 million lists",
        lambda: _called(b'{"a":[%b]}' % b",".join([b"[]"] * 4_000_000)),
    ),
    body(
        "arguments-keys",
        "arguments with 1.1 million keys",
        lambda: _called(b"{%b}" % joined((b'"%x":0' % n for n in count()), _SIZE * 5 // 7)),
    ),
    body(
        "arguments-numbers", "arguments with 8 million numbers", lambda: _called(b'{"a":[%b]}' % repeated(b"0", _SIZE))
    ),
    body(
        "arguments-strings",
        "arguments with 2.3 million strings",
        lambda: _called(b'{"a":[%b]}' % repeated(b'"a"', _SIZE * 4 // 6)),
    ),
    body(
        "arguments-nested",
        "arguments with 8 million levels",
        lambda: _called(b'{"a":' + b"[" * (_SIZE // 2) + b"]" * (_SIZE // 2) + b"}"),
    ),
    body(
        "arguments-levels",
        "arguments with 400 levels, 20,000 times in a list",
        lambda: _called(b'{"a":[%b]}' % b",".join([b"[" * 400 + b"]" * 400] * 20_000)),
    ),
    body(
        "arguments-text",
        "arguments with a text of 16 MiB",
        lambda: _called(b'{"a":"%b"}' % repeated(b"some words ", _SIZE, b"")),
    ),
    body(
        "arguments-escapes",
        "arguments that are JSON in JSON in JSON",
        lambda: _called(json.dumps({"a": json.dumps({"a": '\\"' * 900_000})}).encode()),
    ),
    body(
        "arguments-broken",
        "arguments without an end, of 8 million numbers",
        lambda: _called(b'{"a":[' + repeated(b"0", _SIZE)),
    ),
    body(
        "arguments-digits",
        "arguments with a number of 15 million digits",
        lambda: _called(b'{"a":%b}' % (b"9" * 15_000_000)),
    ),
    body("arguments-many", "30,000 tool calls", lambda: _called(*[b'{"a":1,"b":[1,2]}'] * 30_000)),
    body(
        "arguments-doubles",
        "arguments with 900,000 doubles",
        lambda: _called(b'{"a":[%b]}' % repeated(b"1.2345678901234567e8", _SIZE - 10)),
    ),
)
