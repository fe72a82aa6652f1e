"""National ids that are found only directly behind their name, because their check digits fit many other numbers.

Argentina: CUIL; Australia: TFN; Austria: Sozialversicherungsnummer; Bulgaria: EGN; Canada: SIN; Chile: RUT; Croatia:
OIB; Czechia and Slovakia: rodné číslo; Dominican Republic and Ecuador: cédula; Estonia: isikukood; Greece: AMKA;
Iceland: kennitala; India: Aadhaar; Ireland: PPS number; Israel: teudat zehut; Kazakhstan: IIN; Latvia: personas kods;
Lithuania: asmens kodas; Malaysia: NRIC; Mexico: CURP; New Zealand: IRD number; Pakistan: CNIC; Portugal: NIF; Romania:
CNP; Slovenia and its neighbours: EMŠO, JMBG; South Africa: identity number; South Korea: resident number; Thailand:
national id; Turkey: TCKN; Ukraine: RNOKPP; United Kingdom: NHS number; United States: ITIN.

Check digits come from python-stdnum. The label is looked for first: it costs a tenth of the check.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from stdnum.ar import cuit
from stdnum.at import vnr
from stdnum.au import tfn
from stdnum.bg import egn
from stdnum.ca import sin
from stdnum.cl import rut
from stdnum.cz import rc
from stdnum.do import cedula
from stdnum.ec import ci
from stdnum.ee import ik
from stdnum.gb import nhs
from stdnum.gr import amka
from stdnum.hr import oib
from stdnum.ie import pps
from stdnum.il import idnr
from stdnum.in_ import aadhaar
from stdnum.is_ import kennitala
from stdnum.lt import asmens
from stdnum.lv import pvn
from stdnum.mx import curp
from stdnum.my import nric
from stdnum.nz import ird
from stdnum.pk import cnic
from stdnum.pt import nif
from stdnum.ro import cnp
from stdnum.si import emso
from stdnum.th import pin
from stdnum.tr import tckimlik
from stdnum.ua import rntrc
from stdnum.us import itin

from gateway.canon.lexicon import by_part, entries
from gateway.canon.pii.kinds import national_checks as checks
from gateway.canon.pii.kinds.labels import Labels
from gateway.canon.pii.kinds.text_view import END, START, Span, TextView

_HEAD = re.compile(rf"{START}(?:[0-9]|[A-Za-z]{{4}}[0-9]{{6}})")
_NAMES = Labels(by_part("personal_data", "labelled_ids"), entries("personal_data", "id_links"))
_SEPARATORS = str.maketrans("", "", " .-/")


def _digits(fewest: int, most: int = 0) -> re.Pattern[str]:
    """A number of so many digits, in groups of any size."""
    return re.compile(rf"[0-9](?:[ .\-/]?[0-9]){{{fewest - 1},{(most or fewest) - 1}}}{END}")


# By name: the form, and the check of the id without separators.
_FORMS: Mapping[str, tuple[re.Pattern[str], Callable[[str], bool]]] = {
    "ar": (_digits(11), cuit.is_valid),
    "at": (_digits(10), vnr.is_valid),
    "au": (_digits(8, 9), tfn.is_valid),
    "bg": (_digits(10), egn.is_valid),
    "ca": (_digits(9), sin.is_valid),
    "cedula": (_digits(10, 11), lambda digits: ci.is_valid(digits) if len(digits) == 10 else cedula.is_valid(digits)),
    "cl": (re.compile(rf"[0-9]{{1,2}}\.?[0-9]{{3}}\.?[0-9]{{3}}-?[0-9Kk]{END}"), rut.is_valid),
    "cz": (_digits(9, 10), rc.is_valid),
    "ee": (_digits(11), ik.is_valid),
    "gb": (_digits(10), nhs.is_valid),
    "gr": (_digits(11), amka.is_valid),
    "hr": (_digits(11), oib.is_valid),
    "ie": (re.compile(rf"[0-9]{{7}}[A-Wa-w][A-IWa-iw]?{END}"), pps.is_valid),
    "il": (_digits(8, 9), idnr.is_valid),
    "in": (_digits(12), aadhaar.is_valid),
    "is": (_digits(10), kennitala.is_valid),
    "jmbg": (_digits(13), emso.is_valid),
    "kr": (_digits(13), checks.south_korea),
    "kz": (_digits(12), checks.kazakhstan),
    "lt": (_digits(11), asmens.is_valid),
    "lv": (_digits(11), lambda digits: digits[0] <= "3" and pvn.is_valid(digits)),  # others are companies
    "mx": (re.compile(rf"[A-Za-z]{{4}}[0-9]{{6}}[A-Za-z]{{6}}[0-9A-Za-z][0-9]{END}"), curp.is_valid),
    "my": (_digits(12), nric.is_valid),
    "nz": (_digits(8, 9), ird.is_valid),
    "pk": (_digits(13), cnic.is_valid),
    "pt": (_digits(9), nif.is_valid),
    "ro": (_digits(13), cnp.is_valid),
    "th": (_digits(13), pin.is_valid),
    "tr": (_digits(11), tckimlik.is_valid),
    "ua": (_digits(10), rntrc.is_valid),
    "us": (_digits(9), itin.is_valid),
    "za": (_digits(13), checks.south_africa),
}


def find(view: TextView) -> Iterator[Span]:
    """Spans of national ids behind their names."""

    def length(head: re.Match[str]) -> int:
        name = _NAMES.before(view, head.start())
        if name is None:
            return 0
        form, is_valid = _FORMS[name]
        match = form.match(view.text, head.start())
        return len(match[0]) if match and is_valid(match[0].translate(_SEPARATORS)) else 0

    return view.matches(_HEAD, length)
