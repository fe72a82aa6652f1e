"""Where shared state is kept: the value of the top-level key ``state``."""

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, SecretStr

MEMORY = "memory"
"""The value that means: in this process, and nowhere else."""

_VISIBLE_ASCII = re.compile(r"[!-~]+")
_DATABASE = re.compile(r"(/|/\d{1,5})?")
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_EXPECTED = "expected memory, or a URL such as redis://:PASSWORD@redis:6379/0 (rediss:// for TLS)"
_SPELLED = "other characters than letters and digits in a password are written as %40 for @, %23 for #, %2F for /"


def _where(state: SecretStr | None) -> SecretStr | None:
    """The URL; None for the gateway's own memory. Messages do not quote it: it may hold a password.

    Raises:
        ValueError: it is neither.
    """
    if state is None or state.get_secret_value() == MEMORY:
        return None
    url = state.get_secret_value()
    try:
        parts = urlsplit(url) if _VISIBLE_ASCII.fullmatch(url) else None
        valid = parts is not None and bool(parts.scheme) and parts.port != 0
    except ValueError:
        # Several hosts look like a port that is no number.
        parts, valid = None, False
    if "sentinel" in url.partition("://")[0] or "cluster" in url.partition("://")[0] or _has_several_hosts(url):
        raise ValueError("Redis Sentinel and Redis Cluster are not supported yet (give the URL of one server)")
    if parts is None or not valid or parts.scheme not in {"redis", "rediss"} or not parts.hostname:
        raise ValueError(f"{_EXPECTED}; {_SPELLED}")
    _check_rest(parts)
    return state


def _check_rest(parts: SplitResult) -> None:
    if parts.username and parts.password is None:
        raise ValueError("a password stands behind a colon: redis://:PASSWORD@redis:6379, or redis://USER:PASSWORD@…")
    if parts.fragment or not _DATABASE.fullmatch(parts.path):
        raise ValueError(f"behind the port comes nothing but a database's number, such as /0; {_SPELLED}")
    options = parse_qsl(parts.query, keep_blank_values=True)
    if parts.query and parts.scheme != "rediss":
        raise ValueError("options (?…) are for rediss:// only (leave them off)")
    for name, value in options:
        if name not in _TLS_FILES:
            # Its name alone, and shortened: somebody's password may have a question mark in it.
            raise ValueError(f"an option that is not known; there is {', '.join(_TLS_FILES)}; {_SPELLED}")
        if not Path(value).is_file():
            raise ValueError(f"{name}: no such file: {unquote(value)}")
    if parts.query and not options:
        raise ValueError(f"an option that is not known; there is {', '.join(_TLS_FILES)}")


def _has_several_hosts(url: str) -> bool:
    return "," in url.partition("://")[2].partition("/")[0].rpartition("@")[2]


State = Annotated[SecretStr | None, AfterValidator(_where)]
"""Type of the setting: the URL of a Redis, secret because of its password; None for the gateway's own memory."""
