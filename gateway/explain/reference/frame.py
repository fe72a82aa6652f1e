"""The frame of a prompt: the text that an application puts before the text of its users.

These are the leading messages and the tools. A prompt with neither uses the beginning of its first message instead,
which may contain a template; such frames need a higher similarity to match.
"""

import heapq

from gateway.explain.prompt_text import LEADING_ROLES, Message, PromptText
from gateway.explain.reference.wording import RecentCache, Segment, Wording, digest

_SAMPLED_MARKS = 48
_SAMPLED_TOOLS = 16
_LEAST_SHARED = 0.4
_LEAST_SHARED_OPENING = 0.6
_LEAST_MARKS_OPENING = 8

_OPENING_CHARACTERS = 2_000
_OPENING_SKELETON_CHARACTERS = 400
_OPENING_LETTERS = 16

_FRAME_BEGINNING = 140
_OPENING_BEGINNING = 72
_WIDE = "\u2e80"
"""First of the characters that count as a word each (East Asian scripts)."""

_HEADLINE_WORDS = 5
_HEADLINE_CHARACTERS = 28


_FRAME_BYTES = 3_000


class Frames:
    """Frames of prompts, with a cache: most requests of an application begin alike."""

    def __init__(self, max_bytes: int) -> None:
        """Cache frames and segments of about ``max_bytes`` in all."""
        self._wording = Wording(max_bytes // 2)
        self._frames: RecentCache[tuple[object, ...], Frame] = RecentCache(max_bytes // 2)

    def of(self, text: PromptText) -> "Frame":
        """The frame of a prompt."""
        messages = text.leading or tuple(each for each in text.messages if each.role in LEADING_ROLES)
        key = (tuple((each.role, each.text) for each in messages), tuple(tool.name for tool in text.tools))
        if not any(key):
            return Frame(text, self._wording)
        frame = self._frames.get(key)
        if frame is None:
            frame = Frame(text, self._wording)
            self._frames.put(key, frame, _FRAME_BYTES + 4 * sum(len(each.text) for each in messages))
        return frame


class Frame:
    """The frame of one prompt.

    Attributes:
        is_opening: Whether it is the beginning of the first message, for lack of leading messages and tools.
        skeleton: Hash of the masked frame: equal for frames that differ only in numbers, dates, ids, case, blanks and
            the order of tools; None for a prompt without text.
    """

    __slots__ = ("_beginnings", "_features", "_segments", "_tools", "is_opening", "skeleton")

    def __init__(self, text: PromptText, wording: Wording) -> None:
        self._tools = sorted({tool.name for tool in text.tools})
        messages = text.leading or tuple(each for each in text.messages if each.role in LEADING_ROLES)
        self.is_opening = not messages and not self._tools
        self._features: frozenset[int] | None = None
        self._beginnings: tuple[int, ...] | None = None
        if self.is_opening:
            opening = text.messages[0].text[:_OPENING_CHARACTERS] if text.messages else ""
            self._segments = wording.segments(opening)
            self.skeleton = _opening_skeleton(opening, self._segments)
        else:
            self._segments, self.skeleton = self._read(messages, wording)

    def _read(self, messages: tuple[Message, ...], wording: Wording) -> tuple[list[Segment], int]:
        segments: list[Segment] = []
        parts = list(self._tools)
        for message in messages:
            own = wording.segments(message.text)
            parts.append(f"\0{message.role}\0{_joined(own)}")
            segments += own
        return segments, digest("\n".join(parts))

    @property
    def features(self) -> frozenset[int]:
        """Hashes of sampled word runs, lines and tool names, by which similar frames are found."""
        if self._features is None:
            marks = {mark for segment in self._segments for mark in segment.marks}
            tools = {digest("tool\0" + name) for name in self._tools}
            sampled = heapq.nsmallest(_SAMPLED_MARKS, marks) + heapq.nsmallest(_SAMPLED_TOOLS, tools)
            self._features = frozenset(sampled)
        return self._features

    @property
    def beginnings(self) -> tuple[int, ...]:
        """Hashes of the beginning of the masked frame; equal only for prompts that begin with the same many words."""
        if self._beginnings is None:
            self._beginnings = tuple(digest(f"{int(self.is_opening)}{each}") for each in self._begin())
        return self._beginnings

    def _begin(self) -> list[str]:
        characters = _OPENING_BEGINNING if self.is_opening else _FRAME_BEGINNING
        begin = _joined(self._segments[:characters])[:characters]
        wide = sum(sign >= _WIDE for sign in begin)
        if 2 * wide > len(begin):
            characters //= 3
        found = [begin[:characters]] if len(begin) >= characters else []
        if self.is_opening and len(self._segments) > 1 and self._segments[0].is_line:
            headline = self._segments[0].masked
            if headline.count(" ") >= _HEADLINE_WORDS - 1 and len(headline) >= _HEADLINE_CHARACTERS:
                found.append("\n" + headline)
        return found


def similarity(one: frozenset[int], other: frozenset[int]) -> float:
    """Share of the features that both frames have (Dice coefficient), 0 to 1."""
    return 2 * len(one & other) / (len(one) + len(other)) if one and other else 0.0


def are_similar(shared: int, share: float, is_opening: bool) -> bool:
    """Whether two frames are variants of one: they have ``shared`` features in common, a ``share`` of all."""
    if is_opening:
        return share >= _LEAST_SHARED_OPENING and shared >= _LEAST_MARKS_OPENING
    return share >= _LEAST_SHARED


def _joined(segments: list[Segment]) -> str:
    return " ".join(segment.masked for segment in segments)


def _opening_skeleton(opening: str, segments: list[Segment]) -> int | None:
    """Skeleton of an opening; unmasked if it has few letters, because other numbers are then another question."""
    if not opening.strip():
        return None
    text = _joined(segments)[:_OPENING_SKELETON_CHARACTERS]
    if sum(map(str.isalpha, text)) < _OPENING_LETTERS:
        text = opening
    return digest("\0opening\0" + text)
