"""A declared prefix: the body of a generation request, with tenant, scope, application and replicas; orders to send
some of them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import orjson

from gateway.config.warmup_settings import SLOWEST
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.request import Endpoint

Location = tuple[str | int, ...]
"""Keys and list indexes of a value, from the top of a list of prefixes."""

_GATEWAY_KEYS = ("tenant", "scope", "application", "replicas")
"""Keys for the gateway, which are not sent to the engine."""

_CHECKED_KEYS = (*_GATEWAY_KEYS, "model", "messages", "prompt", "tools")
_MIN_SIMILARITY = 0.85
_ONE_TOKEN = {"max_tokens": 1, "stream": False, "n": 1}

# Keys that do not change the prompt, but may make an engine refuse a request for one token, generate more than one, or
# bypass its cache (prompt_logprobs of vLLM). Request ids would not be unique across the ranks of an engine.
_DROPPED = frozenset(
    {
        *("max_completion_tokens", "min_tokens", "stream_options", "stop", "stop_token_ids"),
        *("best_of", "use_beam_search", "logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids", "echo"),
        *("request_id", "rid"),
    }
)


class Malformed(Exception):
    """A declaration is invalid. Never quotes values, which may be prompts.

    Attributes:
        location: Location of the invalid value, relative to the prefix or to the list.
        message: The problem and its fix.
        code: Error code.
    """

    def __init__(self, location: Location, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.location = location
        self.message = message
        self.code = code

    def within(self, *outer: str | int) -> "Malformed":
        """The same error with a location relative to an outer value."""
        return Malformed((*outer, *self.location), self.message, self.code)


@dataclass(frozen=True, slots=True)
class Declared:
    """One prefix.

    Attributes:
        endpoint: Chat for messages, completions for a prompt.
        model: The model.
        tenant: Id of its tenant; None if not declared.
        scope: Cache scope of the tenant; empty for none.
        replicas: Replicas to warm up; None: all replicas of the model.
        body: The request body, changed to generate one token.
        fields: The parsed body.
        application: The application it is for, as ``id@version`` or ``id``; empty for none.
    """

    endpoint: Endpoint
    model: ModelId
    tenant: str | None
    scope: str
    replicas: frozenset[ReplicaId] | None
    body: bytes
    fields: Mapping[str, Any]
    application: str = ""


def declare(entry: object) -> Declared:
    """Parse an item of a list of prefixes, without checking that tenants, models and replicas exist.

    Checks only what the gateway needs; the engine validates the rest.

    Raises:
        Malformed: it is not a valid declaration.
    """
    if not isinstance(entry, dict):
        raise _wrong((), "a mapping with a model and with messages or a prompt", entry)
    _check_keys(entry)
    if entry.get("model") is None:
        raise Malformed(("model",), "required, but missing (add it)", "missing_required_parameter")
    return Declared(
        endpoint=_endpoint(entry),
        model=ModelId(_text(entry["model"], ("model",))),
        tenant=_optional_text(entry, "tenant"),
        scope=_optional_text(entry, "scope") or "",
        replicas=_replicas(entry.get("replicas")),
        body=(body := _body(entry)),
        fields=orjson.loads(body),
        application=_optional_text(entry, "application") or "",
    )


def kind_of(value: object) -> str:
    """Type of a value for error messages, which must not quote the value."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text" if value else "empty text"
        case list():
            return "a list" if value else "an empty list"
        case dict():
            return "a mapping"
        case _:
            return "something else"


def replica_ids(value: object, location: Location) -> frozenset[ReplicaId] | None:
    """The ids in a list of replicas; None without a list.

    Raises:
        Malformed: it is not a list of names.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise _wrong(location, "a list of replica ids (leave it out for all)", value)
    return frozenset(ReplicaId(_text(item, (*location, position))) for position, item in enumerate(value))


def _check_keys(entry: Mapping[str, object]) -> None:
    """Detect misspelled keys, which engines would ignore."""
    for key in entry:
        if key not in _CHECKED_KEYS and (
            close := get_close_matches(key.lower(), _CHECKED_KEYS, n=1, cutoff=_MIN_SIMILARITY)
        ):
            raise Malformed((key,), f"unknown key (did you mean {close[0]}?)", "unknown_parameter")


def _endpoint(entry: Mapping[str, object]) -> Endpoint:
    messages, prompt = entry.get("messages"), entry.get("prompt")
    if messages is None and prompt is None:
        message = "neither messages (for chat) nor a prompt (for completions): add one of them"
        raise Malformed((), message, "missing_required_parameter")
    if messages is not None and prompt is not None:
        raise Malformed(("prompt",), "both messages and a prompt (remove one)")
    if messages is None:
        if not isinstance(prompt, str | list) or not prompt:
            raise _wrong(("prompt",), "text, a list of texts, or token ids", prompt)
        return Endpoint.COMPLETIONS
    _check_messages(messages)
    tools = entry.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise _wrong(("tools",), "a list of tools", tools)
    return Endpoint.CHAT


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list) or not messages:
        raise _wrong(("messages",), "a list of messages", messages)
    for position, message in enumerate(messages):
        here: Location = ("messages", position)
        if not isinstance(message, dict):
            raise _wrong(here, "a mapping with a role and content", message)
        if not isinstance(message.get("role"), str):
            raise _wrong((*here, "role"), "text such as system, user, assistant or tool", message.get("role"))
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise _wrong((*here, "content"), "text or a list of content parts", content)


def _replicas(value: object) -> frozenset[ReplicaId] | None:
    return replica_ids(value, ("replicas",))


def _optional_text(entry: Mapping[str, object], key: str) -> str | None:
    return None if entry.get(key) is None else _text(entry[key], (key,))


def _text(value: object, location: Location) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        in_quotes = " (put it in quotes)" if isinstance(value, bool | int | float) else ""
        expected = "printable text" if isinstance(value, str) and value else "text"
        raise Malformed(location, f"expected {expected}, got {kind_of(value)}{in_quotes}", "invalid_type")
    return value


def _body(entry: Mapping[str, object]) -> bytes:
    fields = {
        key: value for key, value in entry.items() if key not in _GATEWAY_KEYS and key not in _DROPPED
    } | _ONE_TOKEN
    try:
        body = orjson.dumps(fields)
    except TypeError as error:  # a lone surrogate, an integer beyond 64 bits, nested too deep
        raise Malformed((), f"cannot be written as JSON: {error}") from None
    if orjson.loads(body) != fields:
        raise Malformed((), "holds a number that JSON does not have (infinity, or not a number)")
    return body


def _wrong(location: Location, expected: str, got: object) -> Malformed:
    return Malformed(location, f"expected {expected}, got {kind_of(got)}", "invalid_type")


_KEYS = ("prefixes", "declared", "replicas", "requests_per_second")


@dataclass(frozen=True, slots=True)
class WarmOrder:
    """An operator's order.

    Attributes:
        prefixes: The prefixes to send; None: those declared in the configuration.
        replicas: The replicas to warm up; None: all.
        requests_per_second: The rate; None: the configured one.
    """

    prefixes: list[Declared] | None
    replicas: frozenset[ReplicaId] | None
    requests_per_second: float | None


def parse_order(body: Mapping[str, object]) -> WarmOrder:
    """Parse an order, without checking that tenants, models and replicas exist.

    Raises:
        Malformed: the order is invalid.
    """
    for key in body:
        if key not in _KEYS:
            raise Malformed((key,), f"unknown key, expected one of {', '.join(_KEYS)}", "unknown_parameter")
    return WarmOrder(
        _prefixes(body), replica_ids(body.get("replicas"), ("replicas",)), _rate(body.get("requests_per_second"))
    )


def _prefixes(body: Mapping[str, object]) -> list[Declared] | None:
    if "declared" in body:
        if body["declared"] is not True:
            raise Malformed(("declared",), "can only be true")
        if "prefixes" in body:
            raise Malformed(("declared",), "cannot be combined with prefixes (remove one of them)", "conflict")
        return None
    entries = body.get("prefixes")
    if not isinstance(entries, list) or not entries:
        raise Malformed(("prefixes",), f"expected a list of prefixes, got {kind_of(entries)}", "invalid_type")
    prefixes = []
    for position, entry in enumerate(entries):
        try:
            prefixes.append(declare(entry))
        except Malformed as error:
            raise error.within("prefixes", position) from None
    return prefixes


def _rate(value: object) -> float | None:
    if value is None:
        return None
    usable = isinstance(value, int | float) and not isinstance(value, bool) and SLOWEST <= value < math.inf
    if not usable:
        raise Malformed(("requests_per_second",), f"expected a number, at least {SLOWEST}")
    assert isinstance(value, int | float)
    return float(value)
