"""Spellings of strings: escapes, quotes, surrogates, very many or very long ones."""

from benchmarks.hostile.attacks.attack import FULL, body, chat, message, repeated


def _message(piece: bytes, size: int = FULL - 4096) -> bytes:
    return chat(messages=message(repeated(piece, size, b"")))


ATTACKS = (
    body("backslashes", "a message of 16 MiB backslashes", lambda: _message(rb"\\")),
    body(
        "backslashes-unknown",
        "the same in an unknown member",
        lambda: chat(b'"x":"%b"' % repeated(rb"\\", separator=b"")),
    ),
    body("newline-escapes", r"a message of 8 million `\n`", lambda: _message(rb"\n")),
    body("quote-escapes", r"a message of 8 million `\"`", lambda: _message(rb"\"")),
    body("unicode-escapes", r"a message of 2.8 million `\u0041`", lambda: _message(rb"\u0041")),
    body("zero-escapes", r"a message of 2.8 million `\u0000`", lambda: _message(rb"\u0000")),
    body("surrogates", r"a message of 1.4 million `\ud83d\ude00`", lambda: _message(rb"\ud83d\ude00")),
    body(
        "half-surrogates",
        "the same, and half a pair in the last place",
        lambda: chat(messages=message(repeated(rb"\ud83d\ude00", separator=b"") + rb"\ud83d")),
    ),
    body("half-surrogates-only", r"a message of 2.8 million `\udc00`", lambda: _message(rb"\udc00")),
    body(
        "short-strings", "3.3 million short strings in an unknown member", lambda: chat(b'"x":[%b]' % repeated(b'"ab"'))
    ),
    body("brackets-in-text", "a message of 16 million brackets", lambda: _message(b"[{", FULL - 4096)),
)
