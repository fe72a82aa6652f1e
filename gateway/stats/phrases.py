"""Phrases for text that people read."""

from collections.abc import Mapping
from datetime import UTC, datetime

from gateway.core.reasons import Rung

EVIDENCE: Mapping[bool, str] = {True: "confirmed", False: "predicted"}
"""Evidence of hits and reasons, by whether the engine reported its hits."""

COMPARED_BY: Mapping[str, str] = {
    "session": "the same session",
    "conversation": "the same conversation",
    "skeleton": "the same prompt template",
    "similar": "a similar prompt",
}
"""What a request has in common with the one it is compared with, by ``ReferenceShown.chosen_by``."""

RUNGS: Mapping[Rung, str] = {
    Rung.CONFIRMED: "not computed again, as the engine reports",
    Rung.CHOSEN: "believed to be held by the replica that was chosen",
    Rung.ANYWHERE: "believed to be held by some replica",
    Rung.SEEN_HERE: "computed before in this prefix space",
    Rung.SEEN: "computed before in any prefix space",
    Rung.REFERENCE: "equal to the earlier request it is compared with, from the first token on",
    Rung.REUSABLE: "as before, plus what the earlier request contains after the first difference",
    Rung.PROMPT: "the whole prompt",
}
"""Meaning of each rung of the ladder."""

PREDICTED_HITS = "not computed again, as predicted: the engine reports nothing"
"""Meaning of the first rung if the engine reports no hits."""


def iso_time(at: float) -> str:
    """Unix seconds as a UTC time to the millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def one_line(text: str) -> str:
    """Text without line ends and control characters, for one line of a terminal."""
    return "".join(letter if letter.isprintable() else "⏎" if letter == "\n" else " " for letter in text)


def ago(seconds: float) -> str:
    """A duration as text."""
    if seconds < 120:
        return f"{max(seconds, 0):.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
