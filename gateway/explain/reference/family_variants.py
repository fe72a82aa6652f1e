"""Matches the variants that several client families send of one application."""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any

from gateway.explain.prompt_text import PromptText
from gateway.explain.reference.frame import Frames, are_similar, similarity

_STRAY = 20
"""A variant is another family's if that family sends it at least this many times as often."""
_MANY = 4


@dataclass(slots=True)
class Variant:
    """A frame as sent by some families.

    Attributes:
        sample: Leading messages and tools of one request.
        frame: Number of the frame; equal for variants that differ only in ``questions``.
        questions: Number of user messages before the question.
        frames: Reads the features of the frame, which are needed only where families are compared.
        tools_first: Whether the template renders tools first.
        size: Bytes.
        senders: The families that sent it.
        described: Differences to other variants, by (other variant, its family, family that sends this one).
    """

    sample: PromptText
    frame: int
    questions: int
    frames: Frames
    tools_first: bool
    size: int
    senders: set[str] = field(default_factory=set)
    described: dict[tuple[int, str, str], dict[str, Any] | None] = field(default_factory=dict)
    _features: frozenset[int] | None = None

    @property
    def features(self) -> frozenset[int]:
        """Features of the frame."""
        if self._features is None:
            self._features = self.frames.of(self.sample).features
        return self._features


@dataclass(slots=True)
class VariantCounts:
    """Requests of one family, by variant and time slot. ``slot`` is that of the last request."""

    slot: int
    counts: dict[int, dict[int, int]] = field(default_factory=dict)

    def requests(self, variant: int, since: int) -> int:
        """Requests of a variant from a time slot on."""
        return sum(count for slot, count in self.counts.get(variant, {}).items() if slot >= since)

    def total(self, since: int) -> int:
        """All requests from a time slot on."""
        return sum(self.requests(variant, since) for variant in self.counts)


@dataclass(slots=True)
class FamilyVariants:
    """Variants that the families of a tenant send to a model, least recently sent first."""

    variants: OrderedDict[int, Variant] = field(default_factory=OrderedDict)
    sources: dict[str, VariantCounts] = field(default_factory=dict)


Likeness = tuple[float, bool]
"""Share of features in both frames, and whether both have the same number of user messages before the question."""


class Matching:
    """Finds the variants of two families that belong to one application."""

    def __init__(self, sent: FamilyVariants, since: int) -> None:
        self._variants = sent.variants
        self._requests: dict[str, dict[int, int]] = {}
        for name, source in sent.sources.items():
            counts = {number: source.requests(number, since) for number in source.counts}
            self._requests[name] = {number: count for number, count in counts.items() if count}
        self._senders: dict[int, list[str]] = defaultdict(list)
        for name, counts in self._requests.items():
            for number in counts:
                self._senders[number].append(name)
        self._ranked = sorted(self._senders, key=self._rank)
        self._alike: dict[int, dict[int, Likeness]] = {number: {} for number in self._ranked}
        for at, one in enumerate(self._ranked):
            for other in self._ranked[:at]:
                if likeness := likeness_of(self._variants[one], self._variants[other]):
                    self._alike[one][other] = self._alike[other][one] = likeness
        self._own = {name: self._requests[name].keys() - self._strays_of(name) for name in self._requests}
        self._nearest: dict[tuple[str, int], int | None] = {}

    def deviations(self) -> list[tuple[str, int, str, int]]:
        """Family, variant, larger family, and the variant that this sends instead; most requests first."""
        found: list[tuple[str, int, str, int]] = []
        for at, number in enumerate(self._ranked):
            larger = self._alike[number].keys() & set(self._ranked[:at])
            names = self._senders[number] if larger else []
            for name in sorted(names, key=lambda each: (-self._requests[each][number], each)):
                than = self._instead(name, number, larger)
                if than:
                    found.append((name, number, *than))
        return found

    def _instead(self, name: str, number: int, larger: set[int]) -> tuple[str, int] | None:
        best: tuple[Likeness, int, str, int] | None = None
        for other_name in sorted(self._requests):
            other = self._nearest_of(other_name, number)
            if other is None or other not in larger or self._nearest_of(name, other) != number:
                continue
            rank = (self._alike[number][other], self._requests[other_name][other])
            if best is None or rank > best[:2]:
                best = (*rank, other_name, other)
        return best[2:] if best else None

    def _nearest_of(self, name: str, number: int) -> int | None:
        """The variant of a family that is most similar to a given one; the same one if the family sends it."""
        key = (name, number)
        if key not in self._nearest:
            counts, own, alike = self._requests[name], self._own[name], self._alike[number]
            if number in own:
                self._nearest[key] = number
            else:
                self._nearest[key] = max(
                    own & alike.keys(), key=lambda each: (alike[each], counts[each], each), default=None
                )
        return self._nearest[key]

    def _strays_of(self, name: str) -> set[int]:
        """Variants that do not characterize a family.

        These are rare uses of another family's variant, and many similar variants sent once each, such as prompts with
        retrieved text.
        """
        counts = self._requests[name]
        return {
            number for number in counts if self._is_anothers(counts, number) or self._is_one_of_many(counts, number)
        }

    def _is_anothers(self, counts: dict[int, int], number: int) -> bool:
        """Whether a variant is mainly another family's, while this family mainly sends other leading messages."""
        enough, frame = _STRAY * counts[number], self._variants[number].frame
        return any(self._requests[each][number] >= enough for each in self._senders[number]) and any(
            counts[other] >= enough and self._variants[other].frame != frame
            for other in self._alike[number].keys() & counts.keys()
        )

    def _is_one_of_many(self, counts: dict[int, int], number: int) -> bool:
        others = self._alike[number].keys() & counts.keys()
        return counts[number] == 1 and sum(counts[other] == 1 for other in others) >= _MANY

    def _rank(self, number: int) -> tuple[int, int, str]:
        """Sort key: most requests first; on a tie fewer messages first."""
        counts = {name: self._requests[name][number] for name in self._senders[number]}
        return -max(counts.values()), len(self._variants[number].sample.messages), min(counts)


def likeness_of(one: Variant, other: Variant) -> Likeness | None:
    """The likeness of two variants; None if they belong to different applications."""
    share = similarity(one.features, other.features)
    if not are_similar(len(one.features & other.features), share, is_opening=False):
        return None
    return share, one.questions == other.questions
