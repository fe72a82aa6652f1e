"""Check digits and never-issued ranges of national ids, one function per country.

The functions take digits only, or the id as written if it has letters. python-stdnum checks what it can. Own code stays
for Norway, Belgium and Sweden, because stdnum compares their dates with the current date, and nothing here reads a
clock; for the repeated digits of Germany and the counties of China, where stdnum accepts more or less than is issued;
for the United Kingdom, Russia's SNILS and Kazakhstan, for which it has no module; and for South Africa and South Korea,
whose modules read the clock.
"""

from collections.abc import Sequence

from stdnum import ean, luhn
from stdnum.br import cpf
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.iso7064 import mod_11_10
from stdnum.it import codicefiscale
from stdnum.nl import bsn
from stdnum.pl import pesel
from stdnum.ru import inn
from stdnum.us import ssn

_BRITISH_NEVER = frozenset({"BG", "GB", "KN", "NK", "NT", "TN", "ZZ"})


def united_states(digits: str) -> bool:
    """Social security number: issued areas, groups and serials."""
    return ssn.is_valid(digits)


def spain(text: str) -> bool:
    """DNI and NIE: the letter encodes the number modulo 23."""
    number = text.replace(".", "")
    return nie.is_valid(number) if number[0] in "XYZ" else dni.is_valid(number)


def italy(text: str) -> bool:
    """Codice fiscale: date of birth, check letter."""
    return codicefiscale.is_valid(text)


def france(text: str) -> bool:
    """NIR: month, and the key: 97 minus the number modulo 97. Corsica's departments are 2A and 2B."""
    month = int(text.replace(" ", "")[3:5])
    return (1 <= month <= 12 or 20 <= month <= 42 or month >= 50) and nir.is_valid(text)


def germany(digits: str) -> bool:
    """Tax id: exactly one of the first ten digits occurs two or three times; ISO 7064 MOD 11,10."""
    head = digits[:10]
    counts = sorted((head.count(digit) for digit in set(head)), reverse=True)
    repeated = (
        counts[0] in {2, 3}
        and counts[1] == 1
        and not any(a == b == c for a, b, c in zip(head, head[1:], head[2:], strict=False))
    )
    return digits[0] != "0" and repeated and mod_11_10.is_valid(digits)


def united_kingdom(text: str) -> bool:
    """National insurance number: issued prefixes."""
    first, second = text[0], text[1]
    return first not in "DFIQUV" and second not in "DFIOQUV" and text[:2] not in _BRITISH_NEVER


def switzerland(digits: str) -> bool:
    """AHV number: an EAN-13."""
    return ean.is_valid(digits)


def belgium(digits: str) -> bool:
    """National number: 97 minus the remainder, with a 2 in front for births since 2000."""
    return int(digits[9:]) in {97 - int(digits[:9]) % 97, 97 - int("2" + digits[:9]) % 97}


def sweden(digits: str) -> bool:
    """Personal number YYMMDDNNNC: a date, and Luhn. Coordination numbers have 60 added to the day."""
    day = int(digits[4:6])
    return 1 <= int(digits[2:4]) <= 12 and (1 <= day <= 31 or 61 <= day <= 91) and luhn.is_valid(digits)


def finland(text: str) -> bool:
    """Personal identity code DDMMYYCNNNQ: a date, and the number modulo 31; also temporary ones."""
    return hetu.is_valid(text, allow_temporary=True)


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
    return pesel.is_valid(digits)


def netherlands(digits: str) -> bool:
    """BSN: the 11-test."""
    return bsn.is_valid(digits)


def brazil(digits: str) -> bool:
    """CPF: two check digits; numbers of one repeated digit pass the check but are not issued."""
    return len(set(digits)) > 1 and cpf.is_valid(digits)


def russia_insurance(digits: str) -> bool:
    """SNILS: the weighted sum modulo 101."""
    return int(digits) > 0 and _weighted_sum(digits, range(9, 0, -1)) % 101 % 100 == int(digits[9:])


def russia_tax(digits: str) -> bool:
    """INN of a person: two check digits."""
    return int(digits) > 0 and inn.is_valid(digits)


def kazakhstan(digits: str) -> bool:
    """IIN: YYMMDD, a digit for century and sex, a serial, and a check digit with a second row of weights."""
    if not (1 <= int(digits[2:4]) <= 12 and 1 <= int(digits[4:6]) <= 31 and digits[6] <= "6"):
        return False
    remainder = _weighted_sum(digits, range(1, 12)) % 11
    if remainder == 10:
        remainder = _weighted_sum(digits, (*range(3, 12), 1, 2)) % 11
    return remainder == int(digits[11])  # 10 is no digit: such numbers are not issued


def south_africa(digits: str) -> bool:
    """Identity number YYMMDDSSSSCAZ: a date, 0 to 2 for citizenship, and Luhn."""
    return day_and_month(digits[4:6] + digits[2:4]) and digits[10] <= "2" and luhn.is_valid(digits)


def south_korea(digits: str) -> bool:
    """Resident number YYMMDD-SNNNNNN: a date. Numbers issued since October 2020 have no check digit."""
    return day_and_month(digits[4:6] + digits[2:4])


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
