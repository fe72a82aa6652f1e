"""Members of clients' bodies: which ones chat requests have, too, and errors for those of another form."""

from collections.abc import Mapping
from typing import Any

from gateway.core.errors import BadRequest

SAME = (
    *("model", "stream", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed"),
    *("repetition_penalty", "stop_token_ids", "ignore_eos", "min_tokens", "logit_bias", "priority"),
    *("chat_template_kwargs", "skip_special_tokens", "include_stop_str_in_output", "structured_outputs"),
)
"""Members that chat requests have under the same name, those of engines among them."""

_EXPECTED = {str: "a string", list: "a list", dict: "an object", bool: "a boolean"}


def invalid(param: str, expected: str, code: str = "invalid_value") -> BadRequest:
    """The error for a member that is not as ``expected`` says."""
    return BadRequest(f"`{param}` {expected}.", param=param, code=code)


def member(fields: Mapping[str, Any], name: str, kind: type, place: str = "") -> Any:
    """A member of an object, which stands at ``place``; None if it is missing.

    Raises:
        BadRequest: it is of another type.
    """
    value = fields.get(name)
    if value is not None and not isinstance(value, kind):
        raise invalid(f"{place}.{name}" if place else name, f"must be {_EXPECTED[kind]}", "invalid_type")
    return value


def text_at(fields: Mapping[str, Any], name: str, place: str) -> str:
    """As ``member``, for a string that has to be there."""
    if not isinstance(value := fields.get(name), str):
        code = "invalid_type" if name in fields else "missing_parameter"
        raise invalid(f"{place}.{name}", "must be a string", code)
    return value
