"""A request with what was found in it replaced by its kind."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from gateway.canon.pii.passages import Passage
from gateway.canon.pii.patterns import Hit
from gateway.core.json_edit import Path, replaced
from gateway.core.request import ChatRequest


def masked(request: ChatRequest, findings: Iterable[tuple[Passage, Sequence[Hit]]]) -> ChatRequest:
    """The request with ``[KIND]`` in place of every finding, in its fields and in its body.

    Everything else of the body stays the bytes it was.
    """
    texts = {passage.path: _masked(passage.text, hits) for passage, hits in findings}
    return dataclasses.replace(
        request,
        body=replaced(request.body, {path: orjson.dumps(text) for path, text in texts.items()}),
        fields=_changed(request.fields, list(texts.items()), 0),
    )


def _masked(text: str, hits: Sequence[Hit]) -> str:
    pieces: list[str] = []
    done = 0
    for hit in hits:
        pieces += (text[done : hit.start], f"[{hit.kind}]")
        done = hit.start + hit.length
    return "".join(pieces) + text[done:]


def _changed(value: Any, texts: Sequence[tuple[Path, str]], depth: int) -> Any:
    """A copy of a parsed value with new texts, sharing everything else with it."""
    if len(texts[0][0]) == depth:
        return texts[0][1]
    inside: dict[str | int, list[tuple[Path, str]]] = {}
    for path, text in texts:
        inside.setdefault(path[depth], []).append((path, text))
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    for step, deeper in inside.items():
        copy[step] = _changed(copy[step], deeper, depth + 1)  # type: ignore[index]
    return copy
