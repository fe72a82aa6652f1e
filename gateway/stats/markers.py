"""Markers in the trend: what happened to the gateway at a moment, so that a change of the hit rate finds its cause."""

from collections import deque
from enum import StrEnum

import msgspec

_MAX_MARKERS = 500
_SAME_SECONDS = 60.0
"""Ends of prefix spaces with one cause within this time are one marker: a changed template ends all tenants'."""


class MarkerKind(StrEnum):
    """Kinds of markers."""

    STARTED = "started"
    """The gateway, or the process that explains, was started."""
    RELOADED = "reloaded"
    """Another configuration was applied."""
    TEMPLATE_CHANGED = "template_changed"
    """A model has another chat template or tokenizer than before."""
    MODEL_CHANGED = "model_changed"
    """An engine serves another model, or is another release, than before."""
    PROMPT_VERSION_CHANGED = "prompt_version_changed"
    """A registered prompt has another current version than before."""
    PROMPT_TEXT_EDITED = "prompt_text_edited"
    """Versions of registered prompts have other texts or defaults than before."""
    RESET = "reset"
    """An operator reset prefix spaces."""


_SINGLE = (MarkerKind.STARTED, MarkerKind.RELOADED)


class Marker(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One marker.

    Attributes:
        at: Unix seconds.
        kind: Its kind.
        text: What happened, in a few words for an operator.
    """

    at: float
    kind: MarkerKind
    text: str


class Markers:
    """The latest markers, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[Marker] = deque(maxlen=_MAX_MARKERS)

    def add(self, marker: Marker) -> None:
        """Add a marker, unless it is one of many ends of spaces with the same cause."""
        for known in reversed(() if marker.kind in _SINGLE else self._kept):
            if marker.at - known.at >= _SAME_SECONDS:
                break
            if (known.kind, known.text) == (marker.kind, marker.text):
                return
        self._kept.append(marker)

    def restore(self, markers: list[Marker]) -> None:
        """Add markers of an earlier process."""
        known = {*self._kept, *markers}
        self._kept = deque(sorted(known, key=lambda each: each.at), maxlen=_MAX_MARKERS)

    def all(self) -> list[Marker]:
        """All of them."""
        return list(self._kept)

    def shown(self, first: float) -> list[dict[str, object]]:
        """The markers from a moment on, JSON-ready."""
        return [{"at": each.at, "kind": each.kind, "text": each.text} for each in self._kept if each.at >= first]
