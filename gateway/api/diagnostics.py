"""The comparison with an earlier request in the fields of both vendors' cache diagnostics.

A dialect names the earlier request as ``Translated.compares``, and finds the result in the headers of the answer.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.core.diagnosis import EXPLAINED, PromptDiagnosis

_PROMPT = frozenset({"model", "tools", "system", "messages"})
_OPENAI = dict.fromkeys(("system", "messages", "parameters"), "input_changed") | {"context": "context_compacted"}


def diagnosis_of(headers: Mapping[bytes, bytes]) -> PromptDiagnosis | None:
    """The comparison in the headers of an answer; None if it was not ready in time."""
    header = headers.get(EXPLAINED)
    return None if header is None else msgspec.json.decode(header, type=PromptDiagnosis)


def anthropic_diagnostics(diagnosis: PromptDiagnosis | None) -> dict[str, Any] | None:
    """``diagnostics`` of a message whose request names an earlier one; None if no token is computed again.

    Causes in the fleet, and parameters that chat templates read, have no type of their own: they are ``unavailable``.
    """
    if diagnosis is None:
        return {"cache_miss_reason": None}
    missed: dict[str, Any] = {"type": "unavailable"}
    part = "messages" if diagnosis.changed == "context" else diagnosis.changed
    if diagnosis.status == "not_found":
        missed = {"type": "previous_message_not_found"}
    elif part in _PROMPT:
        missed = {"type": f"{part}_changed", "cache_missed_input_tokens": diagnosis.tokens}
    elif diagnosis.status == "compared" and not diagnosis.tokens and not diagnosis.fleet:
        return None
    return {"cache_miss_reason": missed, "gateway": _own(diagnosis)}


def openai_diagnostics(diagnosis: PromptDiagnosis | None) -> dict[str, Any]:
    """``prompt_cache_diagnostics`` of a response whose request names an earlier one."""
    if diagnosis is None:
        return {"type": "unavailable"}
    found: dict[str, Any] = {"type": "cache_hit"}
    if diagnosis.status == "not_found":
        found = {"type": "comparison_response_not_found"}
    elif part := diagnosis.changed:
        reason = _OPENAI.get(part, f"{part}_changed")
        found = {"type": "cache_miss", "reason": reason, "cache_missed_tokens": diagnosis.tokens}
        found["comparison_reusable_tokens"] = diagnosis.reusable_tokens
    elif diagnosis.status != "compared" or diagnosis.fleet:
        found = {"type": "unavailable"}
    return found | {"gateway": _own(diagnosis)}


def _own(diagnosis: PromptDiagnosis) -> dict[str, Any]:
    return {name: getattr(diagnosis, name) for name in ("reason", "place", "tokens", "fix", "fleet")}
