"""Replaces findings in a request by placeholders."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.canon.pii.passages import Passage
from gateway.canon.pii.placeholders import Value, value_of
from gateway.canon.pii.scanner import Hit
from gateway.core.json_edit import Path, json_text, replaced
from gateway.core.request import ChatRequest


def masked(
    request: ChatRequest, findings: Iterable[tuple[Passage, Sequence[Hit]]], names: Mapping[Value, str]
) -> ChatRequest:
    """The request with placeholders for all findings, in fields and body; other bytes do not change.

    Args:
        request: The request.
        findings: What was found in it.
        names: Placeholders of values; a value that is not there becomes ``[KIND]``.
    """
    texts = {passage.path: _masked(passage.text, hits, names, is_json=passage.is_json) for passage, hits in findings}
    return msgspec.structs.replace(
        request,
        body=replaced(request.body, {path: json_text(text) for path, text in texts.items()}),
        fields=_changed(request.fields, list(texts.items()), 0),
    )


def _masked(text: str, hits: Sequence[Hit], names: Mapping[Value, str], *, is_json: bool) -> str:
    pieces: list[str] = []
    done = 0
    for hit in hits:
        end = hit.start + hit.length
        placeholder = f"[{hit.kind}]"
        if names:
            placeholder = names.get(value_of(hit.kind, text[hit.start : end], is_json=is_json), placeholder)
        if is_json and _is_bare(text, hit.start, end):
            placeholder = f'"{placeholder}"'
        pieces += (text[done : hit.start], placeholder)
        done = end
    return "".join(pieces) + text[done:]


_SPACE = 8
"""Characters around a number in JSON that are looked at."""


def _is_bare(text: str, start: int, end: int) -> bool:
    """Whether a finding is a whole JSON number, such as ``{"phone": 4155552671}``."""
    before = text[max(start - _SPACE, 0) : start].rstrip()
    behind = text[end : end + _SPACE].lstrip()
    return before[-1:] in {":", "[", ","} and behind[:1] in {",", "}", "]"} and text[start:end].isdecimal()


def _changed(value: Any, texts: Sequence[tuple[Path, str]], depth: int) -> Any:
    """A copy of a parsed value with new texts; shares everything else with the original."""
    if len(texts[0][0]) == depth:
        return texts[0][1]
    inside: dict[str | int, list[tuple[Path, str]]] = {}
    for path, text in texts:
        inside.setdefault(path[depth], []).append((path, text))
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    for step, deeper in inside.items():
        copy[step] = _changed(copy[step], deeper, depth + 1)  # type: ignore[index]
    return copy
