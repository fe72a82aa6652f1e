"""Limits of the numbers in a body that the gateway itself computes with."""

from collections.abc import Mapping
from typing import Any

from gateway.core.errors import BadRequest
from gateway.core.numbers import CHOICES, choices, whole
from gateway.core.request import Endpoint

# Looking up a member of an enum takes as long as several other look-ups.
_CHAT = Endpoint.CHAT
_COMPLETIONS = Endpoint.COMPLETIONS
_LARGEST = 2**63 - 1
_CHOICES = frozenset(CHOICES)
_SIZES = frozenset({"max_tokens", "max_completion_tokens", "min_tokens", "truncate_prompt_tokens", "priority"})


def check_numbers(endpoint: Endpoint, fields: Mapping[str, Any], max_sequences: int) -> None:
    """Refuse numbers that no engine accepts.

    Raises:
        BadRequest: a number does not fit into 64 bits, or the request asks for more sequences than it may.
    """
    for name in sorted(_SIZES.intersection(fields)):
        given = fields[name]
        if given is None or (type(given) is int and -_LARGEST <= given <= _LARGEST):
            continue
        value = whole(given)
        if value is not None and not -_LARGEST <= value <= _LARGEST:
            raise BadRequest(f"`{name}` must fit into 64 bits.", param=name, code="invalid_value")
    if endpoint is _CHAT and _CHOICES.isdisjoint(fields):
        return
    sequences = choices(fields) * _prompts(endpoint, fields)
    if sequences > max_sequences:
        counts = {name: whole(fields.get(name)) or 1 for name in CHOICES}
        most = max(counts, key=counts.__getitem__)
        name = most if counts[most] > 1 else "prompt"
        raise BadRequest(
            f"`{name}` is too large: one request may ask for {max_sequences} sequences, its choices times its prompts"
            " (`server.max_sequences`). Ask for fewer choices, or send the prompts in several requests.",
            param=name,
            code="too_many_choices",
        )


def _prompts(endpoint: Endpoint, fields: Mapping[str, Any]) -> int:
    """How many prompts a request has; a list of token ids is one."""
    given = fields.get("prompt") if endpoint is _COMPLETIONS else None
    return len(given) if isinstance(given, list) and given and not isinstance(given[0], int) else 1
