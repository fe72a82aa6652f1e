"""JSON log lines of litellm: its standard logging payload, as it is or inside the line of a logger."""

from collections.abc import Mapping
from typing import Any

from gateway.evaluation.logs.entry_fields import first_time, loaded, reply_of, source_of, text_of, usage_of
from gateway.evaluation.logs.logged_request import LoggedRequest, OtherEntry, ReportedUsage, UnreadableEntry
from gateway.evaluation.logs.request_bodies import read_body

_MARKS = frozenset({"call_type", "model_group", "litellm_call_id", "custom_llm_provider", "model_map_information"})
_LEAST_MARKS = 2
_INSIDE = ("standard_logging_object", "standard_logging_payload", "message", "payload", "kwargs")
_GENERATING = ("completion", "anthropic_messages", "generate")
_TENANTS = (
    *("user_api_key_team_alias", "user_api_key_alias", "user_api_key_org_id", "user_api_key_team_id"),
    *("user_api_key_user_id", "user_api_key_hash"),
)
_PARAMETERS = ("tools", "max_tokens", "temperature", "stream", "n", "response_format", "tool_choice", "extra_body")


def takes_litellm(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is a line of litellm's log."""
    return _payload(entry) is not None


def read_litellm(entry: Mapping[str, Any], place: str) -> LoggedRequest:
    """The request of one line.

    Raises:
        OtherEntry: It is no request for text, or another line of the log.
        UnreadableEntry: The messages were left out of the log.
    """
    payload = _payload(entry)
    if payload is None:
        raise OtherEntry
    call = text_of(payload.get("call_type"))
    if call and not any(name in call for name in _GENERATING):
        raise OtherEntry
    messages = loaded(payload.get("messages"))
    if isinstance(messages, dict):
        messages = messages.get("messages")
    if not isinstance(messages, list | str) or not messages or messages == "redacted-by-litellm":
        raise UnreadableEntry("a litellm entry without messages (turn_off_message_logging is on, or they are redacted)")
    if isinstance(messages, list) and _is_redacted(messages):
        raise UnreadableEntry("a litellm entry with redacted messages (turn_off_message_logging is on)")
    parameters = loaded(payload.get("model_parameters")) or loaded(payload.get("optional_params"))
    parameters = parameters if isinstance(parameters, dict) else {}
    model = text_of(payload.get("model_group"), payload.get("model"))
    raw: dict[str, Any] = {"model": model} | {name: parameters[name] for name in _PARAMETERS if name in parameters}
    if "system" in parameters:
        raw["system"] = parameters["system"]
    raw["messages" if isinstance(messages, list) else "prompt"] = messages
    endpoint, body = read_body(raw)
    metadata = loaded(payload.get("metadata"))
    metadata = metadata if isinstance(metadata, dict) else {}
    tags = payload.get("request_tags")
    agent = (
        next((tag for tag in tags if isinstance(tag, str) and tag.lower().startswith("user-agent:")), None)
        if (isinstance(tags, list))
        else None
    )
    return LoggedRequest(
        place=place,
        endpoint=endpoint,
        body=body,
        at=first_time({"startTime": payload.get("startTime")}, payload, entry),
        source=source_of({"user-agent": agent.partition(":")[2].strip()} if agent else {}, metadata.get("app")),
        tenant=text_of(*(metadata.get(name) for name in _TENANTS)),
        session=text_of(payload.get("session_id"), metadata.get("session_id"), payload.get("trace_id")),
        usage=usage_of(payload.get("response")) or _counted(payload),
        reply=reply_of(payload.get("response")),
    )


def _payload(entry: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if len(_MARKS & entry.keys()) >= _LEAST_MARKS or ("litellm_call_id" in entry and "messages" in entry):
        return entry
    for name in _INSIDE:
        inner = loaded(entry.get(name)) if name in entry else None
        if isinstance(inner, dict) and (found := _payload(inner)) is not None:
            return found
    return None


def _is_redacted(messages: list[Any]) -> bool:
    return all(isinstance(each, dict) and str(each.get("content")) == "redacted-by-litellm" for each in messages)


def _counted(payload: Mapping[str, Any]) -> ReportedUsage | None:
    prompt, output = payload.get("prompt_tokens"), payload.get("completion_tokens")
    if not isinstance(prompt, int) or prompt <= 0:
        return None
    return ReportedUsage(prompt, None, output if isinstance(output, int) else 0)
