"""Bodies that are no JSON, which shows only at their end."""

from benchmarks.hostile.attacks.attack import FULL, body, chat, message, repeated


def _long(inside: bytes = b"words ") -> bytes:
    return chat(messages=message(repeated(inside, separator=b"")))


ATTACKS = (
    body("utf8-end", "an invalid byte behind 16 MiB of text", lambda: _long()[:-4] + b'\xff"}]}'),
    body("utf8-overlong", "16 MiB of overlong UTF-8", lambda: _long(b"\xc0\x80")),
    body("truncated", "16 MiB of text without its end", lambda: _long()[:-4]),
    body("truncated-numbers", "8 million numbers without an end", lambda: chat()[:-1] + b',"x":[' + repeated(b"0")),
    body("trailing-comma", "a comma behind 16 MiB", lambda: _long()[:-1] + b",}"),
    body(
        "trailing-comma-numbers",
        "a comma behind 8 million numbers",
        lambda: chat()[:-1] + b',"x":[%b,]}' % repeated(b"0"),
    ),
    body("bom", "a byte order mark in front of 16 MiB", lambda: b"\xef\xbb\xbf" + _long()),
    body("utf16", "16 MiB of UTF-16", lambda: _long()[: FULL // 2 - 2].decode().encode("utf-16")),
    body("white-space", "16 MiB of white space in front of a chat", lambda: b" \n\t\r" * (FULL // 4 - 1000) + chat()),
    body(
        "white-space-inside",
        "white space between 1.6 million brackets",
        lambda: chat(b'"x":[%b]' % repeated(b"0       ")),
    ),
    body("nesting", "16 million `[`", lambda: b"[" * FULL, at_a_time=4),
    body("nesting-objects", 'three million `{"a":`', lambda: b'{"a":' * (FULL // 5), at_a_time=4),
    body(
        "nesting-unknown",
        "50,000 levels in an unknown member, twice",
        lambda: chat(*[b'"x":' + b"[" * 49_000 + b"]" * 49_000] * 2),
    ),
)
