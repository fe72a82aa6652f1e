"""Derives the client family of a request from its headers."""

import re
from collections.abc import Sequence

from gateway.core.api_keys import redacted

UNKNOWN = "unknown"

_LONGEST = 40
_UNUSUAL = re.compile(rb"[^a-z0-9._+-]+")


def client_family(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """``x-client``, else the user agent's product (``mobile/2.1 (iOS)`` is ``mobile``), else ``unknown``.

    In lower case, with only letters, digits and ``.``, ``_``, ``+``, ``-``, so it needs no escaping. Clients choose it:
    code that counts by it must bound the number of families.

    Args:
        headers: The request's, names in lower case.
    """
    agent = b""
    for name, value in headers:
        if name not in (b"x-client", b"user-agent") or redacted(text := value.decode("latin-1")) != text:
            continue
        if name == b"user-agent":
            agent = agent or value
        elif given := _plain(value):
            return given
    return (_plain(agent.partition(b"/")[0].partition(b" ")[0]) if agent else "") or UNKNOWN


def _plain(value: bytes) -> str:
    return _UNUSUAL.sub(b"-", value.strip().lower()).strip(b"-")[:_LONGEST].decode()
