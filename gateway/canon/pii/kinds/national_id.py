"""National identification numbers.

Found are those whose format or check digits make a chance match unlikely:

* United States: social security number ``123-45-6789`` except numbers never issued; other spellings only behind its
  name;
* Spain: DNI and NIE with their letter; Italy: codice fiscale; France: NIR with its key; Germany: tax id;
  United Kingdom: national insurance number; Switzerland: AHV number; Belgium: national number; Sweden: personal number;
  Finland: personal identity code; Norway: birth number; Brazil: CPF ``123.456.789-09``; Russia: SNILS; China: resident
  identity number;
* only behind their name, because other numbers often match: Netherlands: BSN; Poland: PESEL; Russia: INN; Denmark:
  CPR; Brazil: CPF without dots; Kazakhstan: IIN; and the ids of ``labelled_id``.
"""

import re
from collections.abc import Callable, Iterator

from gateway.canon.lexicon import alternatives, by_part
from gateway.canon.pii.kinds import labelled_id
from gateway.canon.pii.kinds import national_checks as checks
from gateway.canon.pii.kinds.text_view import END, START, Span, TextView, digits_of

_NUMBER = re.compile(
    rf"{START}(?:"
    r"(?P<us>[0-9]{3}-[0-9]{2}-[0-9]{4})"
    r"|(?P<br>[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2})"
    r"|(?P<ru>[0-9]{3}-[0-9]{3}-[0-9]{3}[ \-][0-9]{2})"
    r"|(?P<ch>756\.[0-9]{4}\.[0-9]{4}\.[0-9]{2})"
    r"|(?P<be>[0-9]{2}\.[0-9]{2}\.[0-9]{2}-[0-9]{3}\.[0-9]{2})"
    r"|(?P<north>[0-9]{6}(?:[\-+][0-9]{4}|[\-+A-FU-Y][0-9]{3}[0-9A-FHJ-NPR-Y]))"
    r"|(?P<no>[0-9]{6} [0-9]{5})"
    r"|(?P<es>(?:[0-9]{8}|[0-9]{2}\.[0-9]{3}\.[0-9]{3}|[XYZ]-?[0-9]{7})-?[A-Z])"
    r"|(?P<gb>[A-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D])"
    r"|(?P<it>[A-Za-z]{6}[0-9L-NP-VLl-np-v]{2}[A-Za-z][0-9L-NP-Vl-np-v]{2}[A-Za-z][0-9L-NP-Vl-np-v]{3}[A-Za-z])"
    r"|(?P<fr>[1-8] ?[0-9]{2} ?[0-9]{2} ?(?:[0-9]{2}|2[AB]) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2})"
    r"|(?P<de>[0-9]{2} [0-9]{3} [0-9]{3} [0-9]{3})"
    r"|(?P<cn>[0-9]{17}[0-9Xx])"
    r"|(?P<us_spaced>[0-9]{3} [0-9]{2} [0-9]{4})"
    r"|(?P<plain>[0-9]{9}|[0-9]{11,12})"
    rf"){END}"
)
_WHOLE_WORDS = frozenset({"ru", "kz"})
_NAMES = {
    form: re.compile(rf"(?<![a-zа-я])(?:{alternatives(names)})" + (r"(?![^\W\d_])" if form in _WHOLE_WORDS else ""))
    for form, names in by_part("personal_data", "national_id_names").items()
}
_WINDOW = 40


def find(view: TextView) -> Iterator[Span]:
    """Spans of national ids."""

    def named(name: str, match: re.Match[str]) -> bool:
        return _NAMES[name].search(view.before(match.start(), _WINDOW)) is not None

    def length(match: re.Match[str]) -> int:
        form = match.lastgroup
        assert form is not None
        return len(match[0]) if _is_one(form, match, named) else 0

    yield from view.matches(_NUMBER, length)
    yield from labelled_id.find(view)


def _is_one(form: str, match: re.Match[str], named: Callable[[str, re.Match[str]], bool]) -> bool:
    text, digits = match[0], digits_of(match[0])
    match form:
        case "us_spaced":
            return checks.united_states(digits) and named("us", match)
        case "north":
            return (
                checks.finland(text)
                or (len(digits) == 10 and checks.sweden(digits))
                or (len(digits) == 10 and checks.day_and_month(digits) and named("dk", match))
            )
        case "gb":
            return checks.united_kingdom(text) and not named("order", match)
        case "es" | "it" | "fr" | "cn":
            return _BY_TEXT[form](text)
        case "plain":
            return any((not name or named(name, match)) and check(digits) for check, name in _PLAIN[len(digits)])
        case _:
            return _BY_DIGITS[form](digits)


_BY_TEXT = {"es": checks.spain, "it": checks.italy, "fr": checks.france, "cn": checks.china}
_BY_DIGITS = {
    "us": checks.united_states,
    "br": checks.brazil,
    "ru": checks.russia_insurance,
    "ch": checks.switzerland,
    "be": checks.belgium,
    "no": checks.norway,
    "de": checks.germany,
}
# By number of digits: the check, and the name required in front, if any.
_PLAIN: dict[int, tuple[tuple[Callable[[str], bool], str], ...]] = {
    9: ((checks.united_states, "us"), (checks.netherlands, "nl")),
    11: ((checks.germany, ""), (checks.norway, ""), (checks.poland, "pl"), (checks.brazil, "br")),
    12: ((checks.russia_tax, "ru"), (checks.kazakhstan, "kz")),
}
