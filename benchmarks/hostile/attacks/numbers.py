"""Numbers: too many, too long, too large."""

from itertools import count

from benchmarks.hostile.attacks.attack import COMPLETIONS, body, chat, completion, joined, message, repeated

_HUGE = b"9" * 401

ATTACKS = (
    body("n-digits", "`n` with 401 digits", lambda: chat(b'"n":' + _HUGE), at_a_time=4),
    body("n-million", "`n` of a million", lambda: chat(b'"n":1000000'), at_a_time=4),
    body(
        "n-prompts",
        "`n` and `best_of` of a million for 4,096 prompts",
        lambda: completion(b"[%b]" % b",".join([b'"Hi"'] * 4096))[:-1] + b',"n":1000000,"best_of":1000000}',
        path=COMPLETIONS,
        at_a_time=4,
    ),
    body(
        "limit-digits",
        "`max_tokens`, `logprobs`, `seed` and the like with 401 digits, in a stream",
        lambda: chat(
            *(b'"%b":%b' % (name, _HUGE) for name in b"top_logprobs seed priority min_tokens temperature".split()),
            b'"stream":true,"max_completion_tokens":' + _HUGE,
        ),
        at_a_time=4,
    ),
    body("digits", "15 numbers of 1 MiB digits", lambda: chat(b'"x":[%b]' % repeated(b"9" * 2**20))),
    body(
        "digits-4300",
        "3,900 numbers of 4,300 digits, the most that Python parses",
        lambda: chat(b'"x":[%b]' % repeated(b"9" * 4300)),
    ),
    body("exponents", "1.8 million `1e999999`", lambda: chat(b'"x":[%b]' % repeated(b"1e999999"))),
    body("doubles", "900,000 doubles with 17 digits", lambda: chat(b'"x":[%b]' % repeated(b"0.12345678901234567e-7"))),
    body("nan-late", "NaN behind 8 million numbers", lambda: chat(b'"x":[%b,NaN]' % repeated(b"0"))),
    body(
        "nan-members",
        "NaN behind 1.3 million members",
        lambda: chat(joined(b'"%x":0' % n for n in count()), b'"y":NaN'),
    ),
    body(
        "numbers-objects",
        "8 million numbers and 70 objects",
        lambda: chat(b'"x":[%b],"y":[%b]' % (repeated(b"0"), b",".join([b"{}"] * 70))),
    ),
    body("literals", "4 million `true` and `null`", lambda: chat(b'"x":[%b]' % repeated(b"true,null"))),
    body(
        "numbers-in-message",
        "8 million numbers as the content of a message",
        lambda: chat(messages=b'{"role":"user","content":[%b]}' % repeated(b"0") + b"," + message(b"Hi")),
    ),
)
