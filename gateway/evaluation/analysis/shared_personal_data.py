"""Personal data in shared prefixes, found and counted as the gateway does it, one request after the other."""

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from gateway.canon.pii.counting import SharedPrefixes, Tally, beginning_of_findings, conversation_of
from gateway.canon.pii.passages import Passage, beginnings, has_more_pieces, searched
from gateway.canon.pii.scanner import FoundCache, Hit, Patterns
from gateway.config.operator_patterns import TooSlow
from gateway.config.personal_data_settings import PersonalDataSettings
from gateway.core.canonical import PersonalFinding
from gateway.core.request import ChatRequest, Endpoint

_MAX_FINDINGS = 20_000
_MAX_PREFIXES = 50_000
_MAX_PIECES = 4096
_MAX_PER_PROMPT = 1000
_CACHE_BYTES = 16 * 1024 * 1024
_MAX_SOURCES = 100
_OTHER_SOURCE = "(other)"


class PersonalDataShare(NamedTuple):
    """Findings of one kind at one place of the prompts of one client family.

    Attributes:
        source: The client family.
        kind: What it is, such as ``email``.
        path: In which field of the request.
        requests: Requests with such a finding.
        shared: Whether prompts of several conversations have it in common.
    """

    source: str
    kind: str
    path: str
    requests: int
    shared: bool


class SharedPersonalData:
    """Personal data in the prompts of a log.

    Args:
        settings: Kinds, patterns, and from how many conversations on a prefix is shared.
    """

    def __init__(self, settings: PersonalDataSettings) -> None:
        self._patterns = Patterns(settings.kinds, [(each.kind, each.regex) for each in settings.patterns])
        self._max_characters = settings.max_characters
        self._known = FoundCache(_CACHE_BYTES)
        self._shared = SharedPrefixes(settings.shared_by, _MAX_PREFIXES)
        self._tally = Tally(_MAX_FINDINGS, _MAX_FINDINGS)
        self._sources: dict[str, None] = {}
        self._seed = secrets.randbits(64)
        self.skipped = 0

    def add(self, request: ChatRequest, source: str, space: str) -> None:
        """Search the beginning of a request's prompts. ``space`` separates prompts that share nothing."""
        is_chat = request.endpoint is Endpoint.CHAT
        if is_chat and has_more_pieces(request, _MAX_PIECES, with_user=True):
            self.skipped += 1
            return
        prompts: Sequence[Sequence[Passage | bytes]] = [searched(request)] if is_chat else beginnings(request)
        for number, passages in enumerate(prompts):
            texts = [part.text for part in passages if isinstance(part, Passage)]
            if sum(map(len, texts)) > self._max_characters:
                self.skipped += 1
                continue
            try:
                hits = [self._hits(text) for text in texts]
            except TooSlow:
                self.skipped += 1
                continue
            if any(hits):
                self._count(request, number, hits, source, space)

    def shares(self) -> list[PersonalDataShare]:
        """What was found, shared findings first, then those of most requests."""
        sums: dict[tuple[str, str, str], tuple[int, bool]] = {}
        for source in self._sources:
            for report in self._tally.reports(source):
                key = (source, report.finding.kind, report.finding.path)
                requests, shared = sums.get(key, (0, False))
                sums[key] = (max(requests, report.requests), shared or report.shared)
        found = [PersonalDataShare(*key, *value) for key, value in sums.items()]
        return sorted(found, key=lambda each: (not each.shared, -each.requests, each))

    def _hits(self, text: str) -> tuple[Hit, ...]:
        hits = self._known.get("", text)
        if hits is None:
            hits = self._patterns.find(text)
            self._known.put("", text, hits)
        return hits

    def _count(self, request: ChatRequest, number: int, hits: list[tuple[Hit, ...]], source: str, space: str) -> None:
        if source not in self._sources and len(self._sources) >= _MAX_SOURCES:
            source = _OTHER_SOURCE
        self._sources[source] = None
        beginning = beginnings(request)[number]
        places = [at for at, part in enumerate(beginning) if isinstance(part, Passage) and part.searched]
        found = {at: here for at, here in zip(places, hits, strict=True) if here}
        conversation = conversation_of(beginning, request.qualified(request.session), seed=self._seed)
        each = beginning_of_findings(beginning, found, space=space, seed=self._seed)
        for (passage, hit, prefix), _ in zip(each, range(_MAX_PER_PROMPT), strict=False):
            shared = self._shared.count(prefix, conversation)
            finding = PersonalFinding(hit.kind, passage.name, hit.start, hit.length)
            self._tally.count(source, finding, shared=shared)
