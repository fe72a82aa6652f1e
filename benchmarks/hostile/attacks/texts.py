"""Texts of 16 MiB, and system prompts: scripts, repetition, and what rules of canonicalization look for."""

import json
import random
from collections.abc import Callable
from itertools import count

from benchmarks.hostile.attacks.attack import FULL, Attack, Target, body, chat, joined, message, repeated, sending
from benchmarks.isolation import prompt

_SIZE = FULL - 4096
_SYSTEM_SIZE = 490_000
"""Longer ones are not searched for personal data, but refused where that is to be masked."""
_NOW = b"Current time: 2026-11-21 10:%02d:%02d"


def _user(name: str, what: str, text: Callable[[], bytes]) -> Attack:
    return body(name, what, lambda: chat(messages=message(b"You help.", b"system") + b"," + message(text())))


def _system(name: str, what: str, text: Callable[[], bytes]) -> Attack:
    """System prompts that differ at their beginning, so that what was found in one does not answer the next."""

    def bodies(target: Target) -> list[bytes]:
        cut = text()[:_SYSTEM_SIZE].decode(errors="ignore").rstrip("\\").encode()
        begins = (b"%d.%d " % (target.seed, number) for number in range(8))
        return [chat(messages=message(begin + cut, b"system") + b"," + message(b"Hi")) for begin in begins]

    return sending(name, f"{what} in a system prompt of 490 KB", bodies)


def _of(piece: bytes) -> Callable[[], bytes]:
    return lambda: repeated(piece, _SIZE, b"")


def _random(letters: str) -> Callable[[], bytes]:
    def made() -> bytes:
        chance = random.Random(letters)
        block = "".join(chance.choices(letters, k=200_000)).encode()
        return (block * (_SIZE // len(block) + 1))[:_SIZE].decode(errors="ignore").encode()

    return made


def _range(*ranges: tuple[int, int]) -> str:
    return "".join(chr(code) for first, last in ranges for code in range(first, last + 1))


def _words() -> bytes:
    text = prompt("words", 100_000).encode()
    return (text * (_SIZE // len(text) + 1))[:_SIZE]


def _json_inside() -> bytes:
    inside = json.dumps([{"id": n, "name": f"name {n}", "list": [n, [n]], "text": 'a"b'} for n in range(100_000)])
    return json.dumps(inside).encode()[1:-1][:_SIZE].rstrip(b"\\")


def _uuids() -> bytes:
    chance = random.Random(1)
    return joined((b"request id: %032x" % chance.getrandbits(128) for _ in count()), _SIZE, rb"\n")


def _dates() -> bytes:
    return joined(
        (b"20%02d-%02d-%02d %02d:%02d" % (n % 99, n % 12 + 1, n % 28 + 1, n % 24, n % 60) for n in count()),
        _SIZE,
        rb"\n",
    )


ATTACKS = (
    _user("text-words", "words", _words),
    _user("text-ascii", "random ASCII", _random(_range((35, 91), (93, 126), (32, 33)))),
    _user("text-latin", "random Latin-1", _random(_range((0xA1, 0xFF)))),
    _user("text-cjk", "random Chinese", _random(_range((0x4E00, 0x9FFF)))),
    _user("text-emoji", "random emoji", _random(_range((0x1F300, 0x1F64F), (0x1F900, 0x1F9FF)))),
    _user("text-joined-emoji", "families of emoji with joiners", _of("👩‍👩‍👧‍👦🏽".encode())),
    _user("text-combining", "combining marks behind one letter", _of("\u0301\u0323\u0308".encode())),
    _user("text-decomposed", "letters with combining marks", _of("e\u0301o\u0308\u0323".encode())),
    _user("text-hangul", "Hangul in parts", _of("\u1112\u1161\u11ab".encode())),
    _user("text-zero-width", "zero-width characters", _of("\u200b\u2060\ufeff".encode())),
    _user("text-directions", "marks of writing direction", _of("\u202e\u2066\u200f".encode())),
    _user("text-private", "private and unassigned characters", _random(_range((0xE000, 0xE100), (0x10FF00, 0x10FFFD)))),
    _user("text-one-word", "a word without spaces", _random("abcdefghijklmnopqrstuvwxyz")),
    _user("text-one-letter", "one letter", _of(b"a")),
    _user("text-spaces", "spaces", _of(b" ")),
    _user("text-newlines", "newlines", _of(rb"\n")),
    _user("text-returns", "carriage returns, spaces, newlines and tabs", _of(rb" \r\n\t")),
    _user("text-spaced-lines", "empty lines with spaces at their ends", _of(b" " * 1000 + rb"\n")),
    _user("text-punctuation", "punctuation", _random("!#$%&'()*+,-./:;<=>?@[]^_`{|}~")),
    _user("text-dots", "dots", _of(b".")),
    _user("text-digits", "digits", _random("0123456789")),
    _user("text-hex", "hexadecimal digits", _random("0123456789abcdef")),
    _user("text-base64", "base64 without an end", _random(_range((65, 90), (97, 122), (48, 57)) + "+/")),
    _user("text-json", "JSON", _json_inside),
    _user("text-fences", "code fences that are not closed", _of(rb"```python\n")),
    _user(
        "text-long-fences",
        "fences, each longer than the one before",
        lambda: joined((b"`" * n for n in count(3)), _SIZE, rb"\n"),
    ),
    _user("text-backticks", "backticks", _of(b"`")),
    _user(
        "text-tags",
        "100,000 tags inside each other",
        lambda: b"".join(b"<t%d>" % n for n in range(100_000)) + b"".join(b"</t%d>" % n for n in range(99_999, -1, -1)),
    ),
    _user("text-open-tags", "tags that are not closed", _of(b"<a>")),
    _user("text-tables", "tables", _of(rb"| a | b |\n|---|---|\n")),
    _user("text-quotes", "quotations", _of(rb"> > > a\n")),
    _user("text-diff", "a diff", _of(rb"@@ -1,2 +1,2 @@\n-a\n+b\n")),
    _user("text-pre", "`<pre>` that is not closed", _of(rb"<pre>\n a  \n")),
    _user("text-special", "special tokens of chat templates", _of(b"<|im_start|><|im_end|><|endoftext|>")),
    _user(
        "text-contexts",
        "context blocks as the gateway writes them",
        _of(rb"[Current context: what the marks above stand for]\n[context 1] a\n[End of context]\n"),
    ),
    _system("system-words", "words", _words),
    _system(
        "system-times", "current times", lambda: joined((_NOW % (n // 60 % 60, n % 60) for n in count()), _SIZE, rb"\n")
    ),
    _system("system-dates", "dates and times", _dates),
    _system("system-ids", "request ids", _uuids),
    _system("system-labels", "labels of ids without a value", _of(rb"request id: session id: trace id:\n")),
    _system("system-fences", "code fences that are not closed", _of(rb"```python\n")),
    _system("system-open-tags", "tags that are not closed", _of(b"<document>")),
    _system("system-json", "JSON", _json_inside),
    _system(
        "system-contexts",
        "marks of context blocks",
        lambda: joined((b"[context %d]" % n for n in count()), _SIZE, b" "),
    ),
    _system("system-billing", "billing header lines", _of(rb"x-anthropic-billing-header: a=b; c=d\n")),
    _system("system-colons", "colons", _of(b": ")),
)
