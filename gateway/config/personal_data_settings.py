"""Settings of personal data in prompts."""

import re
from typing import Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from gateway.config.operator_patterns import compiled
from gateway.config.replica_settings import header_secret

DefaultKind = Literal["email", "phone", "card", "iban", "ipv4", "national_id"]
BuiltInKind = Literal[DefaultKind, "person_name", "postal_address", "contract_number", "order_number"]
DEFAULT_KINDS: tuple[BuiltInKind, ...] = get_args(DefaultKind)
BUILT_IN_KINDS = frozenset(get_args(BuiltInKind))

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_VISIBLE_ASCII = re.compile(r"[!-~]+")


class PatternSettings(BaseModel):
    """A kind of personal data of your own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    kind: str
    """What it is called in metrics, in the audit log and in place of masked text (`[employee-id]`): up to 40 lower-case
    letters, digits, dashes and underscores, beginning with a letter. Several patterns may share a kind; the built-in
    kinds' names are taken."""

    regex: str
    r"""Regular expression in [RE2's syntax](../canonicalization.md#regular-expressions), such as `'EMP-\d{6}'`; upper
    and lower case differ unless it begins with `(?i)`; `^` and `$` match at every line. Where it overlaps a built-in
    kind, the finding is of this kind. A text in which it takes too long is treated as one that is too long to
    search."""

    @field_validator("kind")
    @classmethod
    def _is_a_new_name(cls, kind: str) -> str:
        _check_kind(kind)
        if kind in BUILT_IN_KINDS:
            raise ValueError(f"{kind} is built in (choose another name)")
        return kind

    @field_validator("regex")
    @classmethod
    def _is_usable(cls, regex: str) -> str:
        compiled(regex)
        return regex


def _check_kind(kind: str) -> None:
    if not _KIND.fullmatch(kind):
        raise ValueError(
            "expected up to 40 lower-case letters, digits, dashes and underscores, beginning with a letter "
            "(such as employee-id)"
        )


class DetectorSettings(BaseModel):
    """A detector of your own, asked over HTTP for what the patterns do not find, such as names without a label;
    [how to connect one](../personal-data.md#a-detector-of-your-own)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    url: str
    """Where it is asked: `POST` to this URL. The texts travel there as they are, so it belongs into the same network,
    or behind `https`."""

    kinds: tuple[str, ...] = Field(min_length=1, max_length=50)
    """The kinds that it may answer, such as `[person_name, diagnosis]`; names as in `patterns`, built-in ones included.
    They become labels of metrics. An answer with another kind is no valid answer."""

    api_key: SecretStr | None = Field(default=None, min_length=1)
    """Secret sent to it as `authorization: Bearer`. Null: no such header."""

    timeout_seconds: float = Field(default=1.0, ge=0.01, le=30.0)
    """How long a request waits for its answer, the connection and the wait for other calls included. It is asked only
    about texts that it has not seen of this tenant before: of a conversation, the new messages. Too small: its answers
    come too late; too large: while it hangs, requests wait that long. After three calls in a row without an answer it
    is not asked for two seconds, and then by one request at a time until it answers: for all others `on_failure` is
    applied at once."""

    on_failure: Literal["closed", "open"] = "closed"
    """What happens to a request that should be masked or blocked if it gives no valid answer. `closed`: it is refused
    with 503 and code `personal_data_detector_failed`. `open`: it goes on with what the patterns found. Both are
    logged. In mode `report` no request waits for it."""

    max_concurrent: int = Field(default=16, ge=1, le=1000)
    """Calls at the same time, of each worker. Too small: requests wait for each other; too large: it is overloaded."""

    @field_validator("url")
    @classmethod
    def _is_an_http_url(cls, url: str) -> str:
        try:
            parts = urlsplit(url) if _VISIBLE_ASCII.fullmatch(url) else None
            valid = parts is not None and parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            valid = False
        if not valid or parts is None:
            raise ValueError("expected an http or https URL, such as http://localhost:8900/find")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("expected a URL without user, query and fragment (give a secret as api_key)")
        return url.rstrip("/")

    @field_validator("kinds")
    @classmethod
    def _are_names(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for kind in kinds:
            _check_kind(kind)
        return kinds

    @field_validator("api_key")
    @classmethod
    def _travels_in_a_header(cls, key: SecretStr | None) -> SecretStr | None:
        return header_secret(key)


class PersonalDataSettings(BaseModel):
    """Personal data in prompts: where it is looked for, which kinds are searched, and what is done with them. Findings
    are reported by kind and position, never by text."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    mode: Literal["off", "report", "mask", "block"] = "report"
    """The action on findings, unless `tenants[].personal_data` says otherwise. `off`: it is not looked for. `report`:
    it is counted and shown, after the answer, and the request is sent unchanged. `mask`: reported, and replaced by its
    kind in brackets (`[email]`) before the request is sent. `block`: reported, and the request is refused with 400 and
    code `personal_data_in_prefix`, or `personal_data_in_prompt` where all messages are searched. If the search itself
    fails, a request that should be masked or blocked is answered with 500 and does not go on."""

    where: Literal["leading", "all"] = "leading"
    """Which text is looked at. `leading`: the messages before the first one with the role `user` (content, name,
    reasoning, refusal), which many requests may share; the prompt of `/v1/completions` is reported only, also with
    `mask` and `block`, because it holds the user's own words. `all`: the messages of every role, the arguments of their
    tool calls, and the prompt of `/v1/completions`. Tool definitions, `documents`, template arguments and media are not
    looked at. With `all`, `max_characters` limits the whole conversation."""

    kinds: tuple[BuiltInKind, ...] = DEFAULT_KINDS
    """Built-in kinds to look for. `phone`: international numbers with `+`, common national forms, and any number right
    behind a word such as phone or call. `card`: known issuers, with a right check digit. `iban`: known countries and
    lengths, with right check digits. `ipv4`: without loopback, networks and what looks like a version. `national_id`:
    forms of some fifty countries that have check digits, or stand behind their name (`ИИН`, `CURP`). Four more have to
    be named, because they can take other text: `person_name` and `postal_address` (behind a label and a colon: `Full
    name:`, `"address": `), `contract_number` and `order_number` (behind such words). Names and addresses without a
    label are not found by any kind."""

    patterns: tuple[PatternSettings, ...] = ()
    """Kinds of your own."""

    detector: DetectorSettings | None = None
    """A detector of your own, asked over HTTP. Not set: none. `analyze` does not ask it."""

    placeholders: Literal["kind", "numbered"] = "kind"
    """What `mask` writes in place of a finding. `kind`: `[email]`. `numbered`: `[email-1]`, the same for the same value
    within a conversation, so that the model can tell values apart. The first 1,000 values of a request are numbered in
    their order. With a session's id the numbers are remembered as well, in memory and as hashes of the values, for
    conversations whose beginning is cut."""

    restore: bool = False
    """Whether the values are put back into the answer where it has their placeholders, streamed or not, also in the
    arguments of tool calls. Needs `placeholders: numbered`, and `where: all`: the answer comes back with the next turn,
    and is masked again. Only values of the same request are put back. Not restored: log probabilities, and answers of
    more than 4 MiB that are not streamed."""

    shared_by: int = Field(default=3, ge=1, le=100)
    """Conversations whose prompts must begin with the same text, up to the end of what was found, before it counts as
    standing in a shared prefix. A conversation is identified by its session, else by everything up to its first user
    message. Too small: what one user has in two windows is called shared; too large: a rare shared prompt is not."""

    max_characters: int = Field(default=500_000, ge=1000)
    """Longest text of a prompt that is searched, in characters. A longer one is not reported, but counted in
    `gateway_personal_data_skipped_total`; with `mask` or `block` it is refused. Searching takes 10 ms a million
    characters of prose, and up to two seconds of what is made to look like card numbers. Too small: long system prompts
    are not examined; too large: a hostile tenant can keep the gateway busy."""

    @field_validator("restore")
    @classmethod
    def _can_be_masked_again(cls, restore: bool, info: ValidationInfo) -> bool:
        if restore and info.data.get("placeholders", "numbered") != "numbered":
            raise ValueError("only numbered placeholders can be restored (add placeholders: numbered)")
        if restore and info.data.get("where", "all") != "all":
            raise ValueError("restored values come back in the next turn, where only all looks (add where: all)")
        return restore
