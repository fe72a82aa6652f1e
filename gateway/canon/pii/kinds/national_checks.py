"""Check digits and never-issued ranges of national ids, one function per country.

The functions take digits only, or the id as written if it has letters.
"""

from collections.abc import Sequence
from itertools import pairwise

from gateway.canon.pii.kinds.card import luhn

_SPANISH_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_FINNISH_CHARACTERS = "0123456789ABCDEFHJKLMNPRSTUVWXY"
_BRITISH_NEVER = frozenset({"BG", "GB", "KN", "NK", "NT", "TN", "ZZ"})
_ITALIAN_DIGITS = str.maketrans("LMNPQRSTUV", "0123456789")
_ITALIAN_ODD = dict(
    zip(
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        (
            *(1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21),
            *(2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23),
        ),
        strict=True,
    )
)
_AMERICAN_SAMPLES = frozenset({"078051120", "219099999"})


def united_states(digits: str) -> bool:
    """Social security number: issued areas, groups and serials."""
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    given = area not in {"000", "666"} and area < "900" and group != "00" and serial != "0000"
    return given and digits not in _AMERICAN_SAMPLES


def spain(text: str) -> bool:
    """DNI and NIE: the letter encodes the number modulo 23."""
    number = text.replace("-", "").replace(".", "")
    head = str("XYZ".index(number[0])) + number[1:-1] if number[0] in "XYZ" else number[:-1]
    return _SPANISH_LETTERS[int(head) % 23] == number[-1]


def italy(text: str) -> bool:
    """Codice fiscale: month letter, day, check letter."""
    code = text.upper()
    day = code[9:11].translate(_ITALIAN_DIGITS)
    if code[8] not in "ABCDEHLMPRST" or not (1 <= int(day) <= 31 or 41 <= int(day) <= 71):
        return False
    odd = sum(_ITALIAN_ODD[character] for character in code[0:15:2])
    even = sum(int(character) if character.isdigit() else ord(character) - 65 for character in code[1:15:2])
    return chr(65 + (odd + even) % 26) == code[15]


def france(text: str) -> bool:
    """NIR: month, and the key: 97 minus the number modulo 97. Corsica's departments are 2A and 2B."""
    number = text.replace(" ", "")
    month = int(number[3:5])
    if not (1 <= month <= 12 or 20 <= month <= 42 or month >= 50):
        return False
    head = number[:13].replace("2A", "19").replace("2B", "18")
    return 97 - int(head) % 97 == int(number[13:])


def germany(digits: str) -> bool:
    """Tax id: exactly one of the first ten digits occurs two or three times; ISO 7064 MOD 11,10."""
    head = digits[:10]
    counts = sorted((head.count(digit) for digit in set(head)), reverse=True)
    repeated = (
        counts[0] in {2, 3}
        and counts[1] == 1
        and not any(a == b == c for a, b, c in zip(head, head[1:], head[2:], strict=False))
    )
    return digits[0] != "0" and repeated and _mod_11_10(head) == int(digits[10])


def united_kingdom(text: str) -> bool:
    """National insurance number: issued prefixes."""
    first, second = text[0], text[1]
    return first not in "DFIQUV" and second not in "DFIOQUV" and text[:2] not in _BRITISH_NEVER


def switzerland(digits: str) -> bool:
    """AHV number: an EAN-13."""
    return sum(int(digit) * (3 if position % 2 else 1) for position, digit in enumerate(digits)) % 10 == 0


def belgium(digits: str) -> bool:
    """National number: 97 minus the remainder, with a 2 in front for births since 2000."""
    return int(digits[9:]) in {97 - int(digits[:9]) % 97, 97 - int("2" + digits[:9]) % 97}


def sweden(digits: str) -> bool:
    """Personal number YYMMDDNNNC: a date, and Luhn. Coordination numbers have 60 added to the day."""
    day = int(digits[4:6])
    return 1 <= int(digits[2:4]) <= 12 and (1 <= day <= 31 or 61 <= day <= 91) and luhn(digits)


def finland(text: str) -> bool:
    """Personal identity code DDMMYYCNNNQ: a date, and the number modulo 31."""
    if len(text) != 11:
        return False
    remainder = int(text[:6] + text[7:10]) % 31
    return day_and_month(text) and _FINNISH_CHARACTERS[remainder] == text[10]


def norway(digits: str) -> bool:
    """Birth number DDMMYYNNNCC, or D-number (40 added to the day): a date, and two check digits."""
    day = str(int(digits[0]) % 4) + digits[1:4] if digits[0] in "4567" else digits
    return (
        day_and_month(day)
        and _weighted_sum(digits, (3, 7, 6, 1, 8, 9, 4, 5, 2, 1)) % 11 == 0
        and _weighted_sum(digits, (5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1)) % 11 == 0
    )


def poland(digits: str) -> bool:
    """PESEL YYMMDDNNNNC: a date whose month also encodes the century, and the check digit."""
    date = 1 <= int(digits[2:4]) % 20 <= 12 and 1 <= int(digits[4:6]) <= 31
    return date and _weighted_sum(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0


def netherlands(digits: str) -> bool:
    """BSN: the 11-test."""
    return int(digits) > 0 and _weighted_sum(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0


def brazil(digits: str) -> bool:
    """CPF: two check digits; numbers of one repeated digit pass the check but are not issued."""
    if all(a == b for a, b in pairwise(digits)):
        return False
    return all(_weighted_sum(digits, range(known + 1, 1, -1)) * 10 % 11 % 10 == int(digits[known]) for known in (9, 10))


def russia_insurance(digits: str) -> bool:
    """SNILS: the weighted sum modulo 101."""
    return int(digits) > 0 and _weighted_sum(digits, range(9, 0, -1)) % 101 % 100 == int(digits[9:])


def russia_tax(digits: str) -> bool:
    """INN of a person: two check digits."""
    first = _weighted_sum(digits, (7, 2, 4, 10, 3, 5, 9, 4, 6, 8)) % 11 % 10
    second = _weighted_sum(digits, (3, 7, 2, 4, 10, 3, 5, 9, 4, 6, 8)) % 11 % 10
    return int(digits) > 0 and (first, second) == (int(digits[10]), int(digits[11]))


def china(text: str) -> bool:
    """Resident identity number: province, date of birth, ISO 7064 MOD 11-2."""
    if not ("11" <= text[:2] <= "65" or text[:2] in {"71", "81", "82"}) or text[6:8] not in {"19", "20"}:
        return False
    if not (1 <= int(text[10:12]) <= 12 and 1 <= int(text[12:14]) <= 31):
        return False
    remainder = sum(int(digit) * pow(2, 17 - position, 11) for position, digit in enumerate(text[:17])) % 11
    return "10X98765432"[remainder] == text[17].upper()


def day_and_month(digits: str) -> bool:
    """Whether it begins with a day and a month, two digits each."""
    return 1 <= int(digits[:2]) <= 31 and 1 <= int(digits[2:4]) <= 12


def _weighted_sum(digits: str, weights: Sequence[int]) -> int:
    """Weighted sum of the first digits."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def _mod_11_10(digits: str) -> int:
    product = 10
    for digit in digits:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10
