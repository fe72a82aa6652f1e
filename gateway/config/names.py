"""Names of tenants, groups, scopes and keys."""

import re

from gateway.core.api_keys import looks_like_key, redacted

ANYBODY = "*"
"""Id of the entry for all tenants that have none of their own; among a key's scopes, any scope."""

DEFAULT_TENANT = "default"
"""Id of the tenant of all requests in open mode."""

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_SHOWN_CHARS = 20


def is_name(text: str) -> bool:
    """Whether it has 1 to 64 characters, all of them letters, digits or ``._:-``, and is no key: names are logged."""
    return _NAME.fullmatch(text) is not None and not looks_like_key(text)


def check_name(text: str) -> str:
    """The text itself.

    Raises:
        ValueError: It is not a valid name.
    """
    if not is_name(text):
        raise ValueError("expected a name of 1 to 64 characters out of A-Z a-z 0-9 . _ : -")
    return text


def check_name_or_any(text: str) -> str:
    """As ``check_name``; ``*`` is good, too."""
    return text if text == ANYBODY else check_name(text)


def shown(text: str) -> str:
    """A client's text, quoted and escaped, for an error message.

    Short enough that a key, sent where a name is expected, cannot be put together from it.
    """
    text = redacted(text)
    return repr(text) if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]!r} and more"
