"""Prompts of ``/v1/completions``."""

from collections.abc import Callable
from itertools import count

from benchmarks.hostile.attacks.attack import COMPLETIONS, Attack, body, completion, joined, repeated


def _prompt(name: str, what: str, *, prompt: Callable[[], bytes]) -> Attack:
    return body(name, what, lambda: completion(prompt()), path=COMPLETIONS)


def _ids(many: int, first: int = 0) -> bytes:
    return b"[%b]" % b",".join(b"%d" % ((first + n * 7919) % 900 + 10) for n in range(many))


ATTACKS = (
    _prompt(
        "prompts-ids",
        "4,096 prompts of 900 token ids",
        prompt=lambda: b"[%b]" % b",".join(_ids(900, n) for n in range(4096)),
    ),
    _prompt(
        "prompts-texts",
        "4,096 prompts of 4 KB",
        prompt=lambda: b"[%b]" % b",".join(b'"%d %b"' % (n, b"some words " * 360) for n in range(4096)),
    ),
    _prompt("prompts-tiny", "4,096 prompts of a letter", prompt=lambda: b"[%b]" % b",".join([b'"a"'] * 4096)),
    _prompt("prompts-too-many", "4 million prompts", prompt=lambda: b"[%b]" % repeated(b'"a"')),
    _prompt("prompt-ids", "a prompt of 2 million token ids", prompt=lambda: _ids(2_000_000)),
    _prompt("prompt-ids-most", "a prompt of 8 million token ids", prompt=lambda: b"[%b]" % repeated(b"7")),
    _prompt("prompt-ids-large", "token ids of 18 digits", prompt=lambda: b"[%b]" % repeated(b"999999999999999999")),
    _prompt(
        "prompt-ids-mixed", "8 million token ids, the last of them a text", prompt=lambda: b'[%b,"a"]' % repeated(b"7")
    ),
    _prompt(
        "prompt-text",
        "a prompt of 16 MiB",
        prompt=lambda: b'"%b"' % joined((b"%d words" % n for n in count()), separator=b" "),
    ),
)
