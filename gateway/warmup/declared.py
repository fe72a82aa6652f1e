"""A declared prefix: the body of a generation request, and whose cache it is for."""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import orjson

from gateway.core.ids import ModelId, ReplicaId
from gateway.core.request import Endpoint

Location = tuple[str | int, ...]
"""Keys and list positions from the top of a list of prefixes to a value."""

_OWN = ("tenant", "scope", "replicas")
"""Keys that are the gateway's and do not travel."""

_HINTED = (*_OWN, "model", "messages", "prompt", "tools")
_ALIKE = 0.85
_ONE_TOKEN = {"max_tokens": 1, "stream": False, "n": 1}

# Keys that do not change the prompt, and because of which an engine may refuse a request for one token, generate more
# than one, or leave its cache unread (prompt_logprobs of vLLM). The ids would be the same at every rank of an engine.
_DROPPED = frozenset(
    {
        *("max_completion_tokens", "min_tokens", "stream_options", "stop", "stop_token_ids"),
        *("best_of", "use_beam_search", "logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids", "echo"),
        *("request_id", "rid"),
    }
)


class Malformed(Exception):
    """Something declared cannot be sent. Never quotes what stands there: it may be a prompt.

    Attributes:
        location: Where; relative to the prefix as long as only that is known.
        message: What is wrong and how to mend it.
        code: Machine-readable.
    """

    def __init__(self, location: Location, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.location = location
        self.message = message
        self.code = code

    def within(self, *outer: str | int) -> "Malformed":
        """The same, seen from further out."""
        return Malformed((*outer, *self.location), self.message, self.code)


@dataclass(frozen=True, slots=True)
class Declared:
    """One prefix.

    Attributes:
        endpoint: Chat or completions, by what it holds.
        model: The model.
        tenant: Whose it is; None if it does not say.
        scope: For which of the tenant's scopes; empty for none.
        replicas: Which replicas are to hold it; None for all of the model.
        body: What is sent: the request, changed so that one token is generated.
        fields: The body parsed.
    """

    endpoint: Endpoint
    model: ModelId
    tenant: str | None
    scope: str
    replicas: frozenset[ReplicaId] | None
    body: bytes
    fields: Mapping[str, Any]


def declare(entry: object) -> Declared:
    """One item of a list of prefixes, checked as far as that goes without knowing the gateway.

    Only what the gateway itself needs is checked; the rest is the engine's to judge.

    Raises:
        Malformed: it is no declared prefix.
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
    )


def kind_of(value: object) -> str:
    """What a value is, in words that do not give it away."""
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
    """The ids in a list of replicas; None without one.

    Raises:
        Malformed: it is no list of names.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise _wrong(location, "a list of replica ids (leave it out for all)", value)
    return frozenset(ReplicaId(_text(item, (*location, position))) for position, item in enumerate(value))


def _check_keys(entry: Mapping[str, object]) -> None:
    """A slip in one of these would be sent to the engine, which passes over what it does not know."""
    for key in entry:
        if key not in _HINTED and (close := get_close_matches(key.lower(), _HINTED, n=1, cutoff=_ALIKE)):
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
    fields = {key: value for key, value in entry.items() if key not in _OWN and key not in _DROPPED} | _ONE_TOKEN
    try:
        body = orjson.dumps(fields)
    except TypeError as error:  # half a character, a number of more than 64 bits, nested too deep
        raise Malformed((), f"cannot be written as JSON: {error}") from None
    if orjson.loads(body) != fields:
        raise Malformed((), "holds a number that JSON does not have (infinity, or not a number)")
    return body


def _wrong(location: Location, expected: str, got: object) -> Malformed:
    return Malformed(location, f"expected {expected}, got {kind_of(got)}", "invalid_type")
