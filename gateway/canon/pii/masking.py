"""Replaces findings in a request by placeholders."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from gateway.canon.pii.passages import Passage
from gateway.canon.pii.scanner import Hit
from gateway.core.json_edit import Path, replaced
from gateway.core.request import ChatRequest

Placeholders = Callable[[str, str], str]
"""Maps a kind and the text of a finding to what is written in its place."""


def by_kind(kind: str, _text: str) -> str:
    """``[KIND]``, the same for every text."""
    return f"[{kind}]"


def masked(
    request: ChatRequest, findings: Iterable[tuple[Passage, Sequence[Hit]]], placeholders: Placeholders = by_kind
) -> ChatRequest:
    """The request with placeholders for all findings, in fields and body; other bytes do not change."""
    texts = {
        passage.path: _masked(passage.text, hits, placeholders, is_json=passage.is_json) for passage, hits in findings
    }
    return msgspec.structs.replace(
        request,
        body=replaced(request.body, {path: json_text(text) for path, text in texts.items()}),
        fields=_changed(request.fields, list(texts.items()), 0),
    )


def json_text(text: str) -> bytes:
    """A text as JSON, also if it holds half a character, which engines take."""
    try:
        return orjson.dumps(text)
    except orjson.JSONEncodeError:
        return json.dumps(text).encode()


def _masked(text: str, hits: Sequence[Hit], placeholders: Placeholders, *, is_json: bool) -> str:
    pieces: list[str] = []
    done = 0
    for hit in hits:
        end = hit.start + hit.length
        placeholder = placeholders(hit.kind, text[hit.start : end])
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
