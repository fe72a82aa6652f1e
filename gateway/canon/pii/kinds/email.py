"""E-mail addresses: ``local@domain.tld``, in Latin, Greek and Cyrillic letters.

Not found: addresses without a dot in the domain (``root@localhost``), users in URLs and SSH remotes
(``https://bot@host.example``, ``git@host.example:team/project``), file names of images (``logo@2x.png``).
"""

import re
from collections.abc import Iterator

from gateway.canon.lexicon import entries
from gateway.canon.pii.kinds.text_view import Span, TextView

_LETTER = "A-Za-z\u00c0-\u024f\u0370-\u052f"
_LABEL = rf"[{_LETTER}0-9][{_LETTER}0-9_\-]{{0,62}}+"
_DOMAIN = re.compile(rf"@{_LABEL}(?:\.{_LABEL}){{1,126}}+")
"""Limits of the domain name system: 63 characters per label, 127 labels."""
# Matched backwards from the @.
_ATOM = rf"[{_LETTER}0-9_%+'&\-]++"
_LOCAL_BACKWARDS = re.compile(rf"{_ATOM}(?:\.{_ATOM})*+")
_LOCAL_CHARS = 64
_TOP_LEVEL = re.compile(rf"[{_LETTER}]{{2,63}}|xn--[A-Za-z0-9\-]{{2,59}}")
_PICTURES = frozenset(entries("personal_data", "picture_endings"))
_USER_OF_A_URL = re.compile(r"//(?:[^\s/@]*:)?$")
_URL_CHARS = 80
_SSH_PATH = re.compile(r":[\w~.\-]*+/")


def find(view: TextView) -> Iterator[Span]:
    """Spans of e-mail addresses."""
    text = view.text
    if "@" not in text:
        return
    for domain in _DOMAIN.finditer(text):
        at = domain.start()
        local = _LOCAL_BACKWARDS.match(text[max(at - _LOCAL_CHARS, 0) : at][::-1])
        length = len(local[0].rstrip("'.%&+-")) if local else 0
        if not length:
            continue
        start, end = at - length, at + _domain_length(domain[0])
        if end > at and not _belongs_to_a_host(text, start, end):
            yield start, end


def _domain_length(domain: str) -> int:
    """Length of a domain up to its top-level domain, including the @; 0 if it has none."""
    while (dot := domain.rfind(".")) > 0:
        last = domain[dot + 1 :].rstrip("-_")
        if _TOP_LEVEL.fullmatch(last) and last.lower() not in _PICTURES:
            return dot + 1 + len(last)
        domain = domain[:dot]
    return 0


def _belongs_to_a_host(text: str, start: int, end: int) -> bool:
    return bool(_SSH_PATH.match(text, end)) or bool(_USER_OF_A_URL.search(text[max(start - _URL_CHARS, 0) : start]))
