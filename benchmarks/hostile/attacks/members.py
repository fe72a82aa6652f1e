"""Objects with very many members, or the same one again and again."""

from itertools import count

from benchmarks.hostile.attacks.attack import body, chat, joined, message, repeated

_STREAM = b'"stream":true'

ATTACKS = (
    body(
        "stream-options",
        'stream with 750,000 `"stream_options":null`',
        lambda: chat(_STREAM, repeated(b'"stream_options":null')),
    ),
    body(
        "include-usage",
        'stream with 750,000 `"include_usage":false` in its options',
        lambda: chat(_STREAM, b'"stream_options":{%b}' % repeated(b'"include_usage":false')),
    ),
    body("cache-salt", 'a million `"cache_salt":"x"`', lambda: chat(repeated(b'"cache_salt":"x"'))),
    body(
        "escaped-names",
        "400,000 `stream_options` and `cache_salt` with escapes in their names",
        lambda: chat(_STREAM, repeated(b'"\\u0073tream_options":{},"cache\\u005fsalt":"x"')),
    ),
    body("limits-repeated", 'a million `"max_tokens":1`', lambda: chat(repeated(b'"max_tokens":1'))),
    body("same-names", '12 MB of `"x":0`', lambda: chat(repeated(b'"x":0', 12_000_000))),
    body(
        "other-names",
        "1.3 million members with names of their own",
        lambda: chat(joined(b'"%x":0' % n for n in count())),
    ),
    body(
        "inner-names",
        "the same inside of `metadata`",
        lambda: chat(b'"metadata":{%b}' % joined(b'"%x":0' % n for n in count())),
    ),
    body(
        "message-names",
        "the same inside of a message",
        lambda: chat(messages=b'{"role":"user","content":"Hi",%b}' % joined(b'"%x":0' % n for n in count())),
    ),
    body("messages-repeated", "99,000 members `messages`", lambda: chat(repeated(b'"messages":[]', 98_000 * 14))),
    body("long-names", "15 names of 1 MiB", lambda: chat(joined(b'"%x%b":0' % (n, b"k" * 2**20) for n in count()))),
    body(
        "fill",
        "an unknown member of 16 MiB",
        lambda: chat(b'"x_fill":"%b"' % repeated(b"f", separator=b""), messages=message(b"Hi")),
        at_a_time=4,
    ),
)
