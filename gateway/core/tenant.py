"""Tenants and the callers of requests; valid names of tenants, groups, scopes, keys and applications."""

import re
from dataclasses import dataclass
from enum import StrEnum

from gateway.core.api_keys import looks_like_key, redacted
from gateway.core.application import Application
from gateway.core.canonical import RuleMode, RuleName
from gateway.core.ids import TenantId

ANYBODY = "*"
"""Id of the entry for all tenants that have none of their own; among a key's scopes, any scope."""

DEFAULT_TENANT = "default"
"""Id of the tenant of all requests in open mode."""

_NAME = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_SHOWN_CHARS = 20


def is_name(text: str) -> bool:
    """Whether it has 1 to 64 characters, all of them letters, digits or ``._:-``, and is no key: names are logged."""
    return _NAME.fullmatch(text) is not None and not looks_like_key(text)


APPLICATION_FORM = "ID or ID@VERSION, each of 1 to 64 characters out of A-Z a-z 0-9 . _ : -"
"""The form of ``is_application``, for error messages."""


def is_application(text: str) -> bool:
    """Whether an application can have this name, or this id for all its versions.

    In names of spaces a second ``@`` marks a prompt that the client may not use.
    """
    name, at, version = text.partition("@")
    return is_name(name) and (not at or is_name(version.removeprefix("@")))


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


class PersonalDataMode(StrEnum):
    """The action on personal data found in a tenant's requests."""

    OFF = "off"
    """It is not looked for."""
    REPORT = "report"
    """It is counted and shown, by kind and position; the request is sent unchanged."""
    MASK = "mask"
    """As ``report``, and findings are masked before the request is sent."""
    BLOCK = "block"
    """As ``report``, and the request is refused."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A customer, team or application, which shares cached prefixes only with itself or its group.

    Attributes:
        id: Its name.
        group: Tenants that trust each other have the same one; empty for none.
        label: Value of the metrics' ``tenant`` label: the id, or one common value for all tenants that are not
            configured, so that their number stays bounded.
        regions: Regions its requests may be sent to; empty for all.
        personal_data: Action on personal data in its requests.
        idle_ttl_seconds: Unused for so long, its prefix spaces end; None for the common value.
        max_age_seconds: At this age its prefix spaces end in any case; None for the common value.
        canon: Modes of canonicalization rules, where it has any of its own.
        priority: Whether its requests may carry ``priority`` where prefixes are kept apart.
        share: Its weight against others when requests have to wait.
    """

    id: TenantId
    group: str = ""
    label: str = "default"
    regions: frozenset[str] = frozenset()
    personal_data: PersonalDataMode = PersonalDataMode.REPORT
    idle_ttl_seconds: float | None = None
    max_age_seconds: float | None = None
    canon: tuple[tuple[RuleName, RuleMode], ...] = ()
    share: float = 1.0
    priority: bool = False


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated sender of a request, and its permissions.

    Attributes:
        tenant: The tenant.
        key_id: Which of the tenant's keys it carried: a name that gives nothing of the key away. Empty without a key
            (open mode, a trusted proxy).
        scope: Which of the tenant's scopes (role, language, environment) it is for; empty for none.
        models: Models it may use; None for all.
        application: The application that the request is for; None if it names none.
    """

    tenant: Tenant
    key_id: str = ""
    scope: str = ""
    models: frozenset[str] | None = None
    application: Application | None = None

    def may_use(self, model: str) -> bool:
        """Whether it may use a model."""
        return self.models is None or model in self.models


EVERYBODY = Caller(Tenant(TenantId("default")))
"""The caller of every request in open mode."""
