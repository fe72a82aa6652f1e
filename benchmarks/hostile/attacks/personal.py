"""System prompts of 499,000 characters, the most that is searched for personal data, each a near miss or a hit."""

import random
from collections.abc import Callable

from benchmarks.hostile.attacks.attack import Attack, Target, chat, message, sending

_SIZE = 499_000


def _search(name: str, what: str, text: Callable[[random.Random], str]) -> Attack:
    """Several prompts that differ at their beginning, so that what was found in one does not answer the next."""

    def bodies(target: Target) -> list[bytes]:
        made = []
        for number in range(8):
            found = f"{number} {text(random.Random(target.seed + number))}"[:_SIZE]
            made.append(chat(messages=message(found.encode(), b"system") + b"," + message(b"Hi")))
        return made

    return sending(name, what, bodies)


def _of(piece: str) -> Callable[[random.Random], str]:
    return lambda _: piece * (_SIZE // len(piece) + 1)


def _each(made: Callable[[random.Random], str], separator: str = " ") -> Callable[[random.Random], str]:
    def text(chance: random.Random) -> str:
        block = separator.join(made(chance) for _ in range(4000)) + separator
        return block * (_SIZE // len(block) + 1)

    return text


def _digits(chance: random.Random, many: int) -> str:
    return "".join(chance.choices("0123456789", k=many))


def _card(chance: random.Random) -> str:
    return f"4{_digits(chance, 3)}-{_digits(chance, 4)}-{_digits(chance, 4)}-{_digits(chance, 4)}"


ATTACKS = (
    _search("mail-labels", "`x@` and 249,000 `a.`", lambda _: "x@" + "a." * 249_000),
    _search("mail-local", "an address's first part without an end", _of("a.")),
    _search("mail-ats", "`a@`", _of("a@")),
    _search("mail-dashes", "`x@a-a-a`", lambda _: "x@" + "a-" * 249_000),
    _search("mail-addresses", "e-mail addresses", _each(lambda chance: f"u{_digits(chance, 6)}@example.com")),
    _search("phones", "phone numbers", _each(lambda chance: f"+49 30 {_digits(chance, 7)}")),
    _search("phones-spaced", "`+1 1 1 1`", _of("+1 1 1 1 ")),
    _search("phones-brackets", "`(415) 555-`", _of("(415) 555-")),
    _search("phones-words", "words in front of numbers, without one", _of("phone number is: ")),
    _search("cards", "card numbers with wrong check digits", _each(_card)),
    _search("cards-joined", "groups of four digits", _of("4111 ")),
    _search("ibans", "IBANs with wrong check digits", _each(lambda chance: f"DE{_digits(chance, 20)}")),
    _search("ibans-spaced", "letters and digits in groups of four", _of("GB82 WEST ")),
    _search("addresses", "IPv4 addresses", _each(lambda chance: ".".join(_digits(chance, 2) for _ in range(4)))),
    _search("addresses-long", "numbers with dots without an end", _of("1.")),
    _search(
        "national-ids",
        "national ids",
        _each(lambda chance: f"{_digits(chance, 3)}-{_digits(chance, 2)}-{_digits(chance, 4)}"),
    ),
    _search("digits-only", "digits", lambda chance: _digits(chance, _SIZE)),
    _search("digits-spaced", "digits with spaces", lambda chance: " ".join(_digits(chance, _SIZE // 2))),
    _search("digits-dashes", "digits with dashes", lambda chance: "-".join(_digits(chance, _SIZE // 2))),
    _search("personal-mixed", "all of these in turn", _of("+1 4111-1111 DE44 x@a.b 10.0.0. 078-05-1120 ")),
)
