"""Searches texts for personal data: short texts directly, long ones in a thread; caches findings by text.

``Patterns`` combines the built-in kinds and the operator's own patterns. Because of the cache a system prompt, which is
part of every request, is searched once.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from xxhash import xxh3_128_digest

from gateway.canon.pii.kinds import card, email, iban, ipv4, national_id, person_name, phone, postal_address
from gateway.canon.pii.kinds.reference_number import find_contract, find_order
from gateway.canon.pii.kinds.text_view import Span, TextView, digit_count
from gateway.canon.pii.passages import Passage
from gateway.config.operator_patterns import compiled
from gateway.core.bounded_cache import BoundedCache
from gateway.core.ports import LongTexts
from gateway.core.tenant import Tenant

if TYPE_CHECKING:
    from gateway.canon.pii.detector import HookDetector

# Ordered from specific to general: overlapping findings are reported with the first kind.
_BUILT_IN: dict[str, Callable[[TextView], Iterator[Span]]] = {
    "person_name": person_name.find,
    "postal_address": postal_address.find,
    "iban": iban.find,
    "national_id": national_id.find,
    "card": card.find,
    "email": email.find,
    "ipv4": ipv4.find,
    "phone": phone.find,
    "contract_number": find_contract,
    "order_number": find_order,
}


class Hit(NamedTuple):
    """Personal data in a text: kind, offset of its first character, and length in characters."""

    kind: str
    start: int
    length: int


class DetectorFailed(Exception):
    """The operator's detector gave no valid answer. The message completes "the detector …" and quotes no text.

    Args:
        problem: The message, which a client may see.
        detail: What only the operator may see, such as an address; empty for nothing.

    Attributes:
        hits: What the patterns found in each of the texts.
    """

    hits: Sequence[tuple[Hit, ...]] = ()

    def __init__(self, problem: str, detail: str = "") -> None:
        super().__init__(problem)
        self.detail = detail


class Patterns:
    """Finds personal data in texts. Pure and thread-safe.

    Args:
        kinds: Built-in kinds to search for.
        own: Kind and regular expression of the operator's patterns, which ``compiled`` accepts.

    Attributes:
        has_own: Whether there are any of the operator's, which may take long.
    """

    def __init__(self, kinds: Collection[str], own: Sequence[tuple[str, str]] = ()) -> None:
        self._kinds = [(kind, find) for kind, find in _BUILT_IN.items() if kind in kinds]
        self._own = [(kind, compiled(regex)) for kind, regex in own]
        self.has_own = bool(self._own)

    def find(self, text: str) -> tuple[Hit, ...]:
        """The findings in a text, sorted and disjoint.

        Overlapping findings are merged into one of the most specific kind; the operator's kinds are more specific than
        the built-in ones.

        Raises:
            TooSlow: one of the operator's patterns takes too long.
        """
        return tuple(_joined(self._spans(text)))

    def _spans(self, text: str) -> Iterator[tuple[int, int, int, str]]:
        """Start, end, rank (lower is more specific) and kind of all matches."""
        for rank, (kind, pattern) in enumerate(self._own):
            for found in pattern.find(text):
                if found.end > found.start:
                    yield found.start, found.end, rank, kind
        view = TextView(text)
        for rank, (kind, find) in enumerate(self._kinds, start=len(self._own)):
            for start, end in find(view):
                yield start, end, rank, kind


def _joined(spans: Iterable[tuple[int, int, int, str]]) -> Iterator[Hit]:
    current: tuple[int, int, int, str] | None = None
    for start, end, rank, kind in sorted(spans):
        if current is None or start >= current[1]:
            if current is not None:
                yield Hit(current[3], current[0], current[1] - current[0])
            current = (start, end, rank, kind)
        else:
            specific = min(current[2:], (rank, kind))
            current = (current[0], max(end, current[1]), *specific)
    if current is not None:
        yield Hit(current[3], current[0], current[1] - current[0])


_LARGEST_SHARE = 4


_ENTRY_BYTES = 512
_HIT_BYTES = 200


class FoundCache:
    """LRU cache of findings by tenant and text, in memory only. Keeps digests of the texts, not the texts.

    Args:
        max_bytes: Memory limit; findings that take more than a quarter of it are not cached.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._hits: BoundedCache[tuple[str, bytes], tuple[Hit, ...]] = BoundedCache(max_weight=max_bytes)
        self._seed = int.from_bytes(os.urandom(8), "little")  # so that no client can construct equal digests

    @property
    def bytes(self) -> int:
        """Memory used by digests and findings."""
        return self._hits.weight

    def get(self, owner: str, text: str) -> tuple[Hit, ...] | None:
        """Findings in a text of this owner; None if it is not cached."""
        return self._hits.get((owner, xxh3_128_digest(text.encode("utf-8", "surrogatepass"), self._seed)))

    def put(self, owner: str, text: str, hits: tuple[Hit, ...]) -> None:
        """Cache the findings in a text of this owner."""
        size = _ENTRY_BYTES + _HIT_BYTES * len(hits)
        if size <= self._max_bytes // _LARGEST_SHARE:
            digest = xxh3_128_digest(text.encode("utf-8", "surrogatepass"), self._seed)
            self._hits.put((owner, digest), hits, weight=size)


_INLINE_COST = 32 * 1024
"""Maximum cost of a search on the event loop: 32 Ki characters of prose take 0.2 ms."""
_DIGIT_COST = 16
"""Cost of a digit in characters; higher in the worst texts, because most kinds consist of digits."""
_MEMO_BYTES = 4 * 1024 * 1024
"""Some 8,000 texts. To search one again costs as much as its first search."""


class Scanner:
    """Personal data in texts.

    Args:
        patterns: Patterns to search for.
        threads: Threads for long texts.
        detector: Asked for what the patterns do not find; None without one.

    Attributes:
        found: The findings that are cached.
    """

    def __init__(self, patterns: Patterns, threads: LongTexts, detector: "HookDetector | None" = None) -> None:
        self._patterns = patterns
        self._threads = threads
        self._detector = detector
        self.found = FoundCache(_MEMO_BYTES)
        self._is_quick = detector is None and not patterns.has_own

    @property
    def has_detector(self) -> bool:
        """Whether texts that are not cached wait for an answer of the operator's detector."""
        return self._detector is not None

    async def find(self, texts: Sequence[str], owner: Tenant) -> list[tuple[Hit, ...]]:
        """Findings in each text. Does not wait if all texts are cached, or short and there is no detector.

        Args:
            texts: The texts.
            owner: Tenant of the texts. The cache is per tenant: response times must not reveal that another tenant sent
                the same text.

        Raises:
            Overloaded: the texts are long, and too many long texts of the tenant wait for a thread.
            DetectorFailed: the detector did; what the patterns found is in ``hits``, and is not cached.
        """
        name = owner.id
        known = [self.found.get(name, text) for text in texts]
        unknown = [text for text, hits in zip(texts, known, strict=True) if hits is None]
        if _cost(unknown) <= _INLINE_COST:
            found = self._search(unknown)
        else:
            found = await self._threads.run(owner, sum(map(len, unknown)), self._search, unknown)
        if self._detector is not None and unknown:
            try:
                detected = await self._detector.find(unknown)
            except DetectorFailed as failed:
                failed.hits = _filled(known, found)
                raise
            found = [_merged(ours, theirs) for ours, theirs in zip(found, detected, strict=True)]
        for text, hits in zip(unknown, found, strict=True):
            self.found.put(name, text, hits)
        return _filled(known, found)

    def finds_nothing(self, passages: Sequence[Passage], owner: Tenant, max_characters: int) -> bool:
        """Whether a prompt has no findings, if that is known, or found out on the event loop; else False. Never raises.

        Args:
            passages: Its texts.
            owner: As of ``find``.
            max_characters: What has more characters is not searched.
        """
        characters, name = 0, owner.id
        unknown: list[str] = []
        for passage in passages:
            text = passage.text
            characters += len(text)
            hits = self.found.get(name, text)
            if hits:
                return False
            if hits is None:
                unknown.append(text)
        if not unknown or characters > max_characters:
            return characters <= max_characters
        return self._is_quick and _cost(unknown) <= _INLINE_COST and self._search_finds_nothing(unknown, name)

    def _search_finds_nothing(self, texts: Sequence[str], name: str) -> bool:
        try:
            found = self._search(texts)
        except Exception:  # noqa: BLE001 - the search that counts findings fails as well, and reports it
            return False
        for text, hits in zip(texts, found, strict=True):
            self.found.put(name, text, hits)
        return not any(found)

    def _search(self, texts: Sequence[str]) -> list[tuple[Hit, ...]]:
        return [self._patterns.find(text) for text in texts]


def _filled(known: Sequence[tuple[Hit, ...] | None], found: Sequence[tuple[Hit, ...]]) -> list[tuple[Hit, ...]]:
    """The known findings with those of the other texts in the gaps."""
    rest = iter(found)
    return [next(rest) if hits is None else hits for hits in known]


def _merged(ours: Sequence[Hit], theirs: Sequence[Hit]) -> tuple[Hit, ...]:
    """Findings of patterns and detector, sorted and disjoint; the kind of a pattern counts where they overlap."""
    if not theirs:
        return tuple(ours)
    spans = [
        (hit.start, hit.start + hit.length, rank, hit.kind) for rank, hits in enumerate((ours, theirs)) for hit in hits
    ]
    return tuple(_joined(spans))


def _cost(texts: Sequence[str]) -> int:
    characters = sum(map(len, texts))
    if characters > _INLINE_COST:
        return characters
    return characters + _DIGIT_COST * sum(map(digit_count, texts))
