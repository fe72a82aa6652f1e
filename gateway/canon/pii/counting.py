"""Counts findings in answered requests, in small portions in the background.

A finding is shared if prompts of several conversations have the same text up to its last character. The texts are
compared by hash; the hashes stay in memory. Prompts with the same prefix have the same finding, so only prefixes with
findings are stored. ``Tally`` keeps the counts by prefix space.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import structlog
import xxhash

from gateway.canon.pii.passages import Beginning, Passage, beginnings, has_more_pieces, searched
from gateway.canon.pii.scanner import DetectorFailed, Hit, Scanner
from gateway.config.operator_patterns import TooSlow
from gateway.core.bounded_cache import BoundedCache
from gateway.core.canonical import FindingReport, PersonalFinding
from gateway.core.errors import Overloaded
from gateway.core.ports import PersonalDataObserver
from gateway.core.request import ChatRequest, Endpoint


@dataclass(frozen=True, slots=True)
class Conversation:
    """Identity of a conversation.

    Attributes:
        id: Hash of the session or of the prompt's beginning.
        length: Length in characters of a prompt without messages, whose next turn extends it; its id is the hash of
            the whole prompt. 0 for chats, whose id does not change.
        begins: Returns the hash of the first n characters of a prompt without messages.
    """

    id: int
    length: int = 0
    begins: Callable[[int], int] | None = None

    def continues(self, earlier: tuple[int, int]) -> bool:
        """Whether this is a later turn of a conversation with the given id and length."""
        known, length = earlier
        return self.begins is not None and 0 < length < self.length and self.begins(length) == known


_SHARED: list[tuple[int, int]] = []
"""Identity of a shared prefix, whose conversations are no longer needed."""


class SharedPrefixes:
    """Counts conversations by the beginning of their prompts, with LRU eviction.

    Args:
        shared_by: Number of conversations from which a prefix counts as shared.
        max_prefixes: Capacity. A prefix takes about 300 bytes, and until it is shared up to 130 more per conversation.
    """

    def __init__(self, shared_by: int, max_prefixes: int) -> None:
        self._shared_by = shared_by
        # Id and length of the conversations with a prefix; _SHARED once there are enough of them.
        self._conversations: BoundedCache[int, list[tuple[int, int]]] = BoundedCache(max_prefixes)

    def __len__(self) -> int:
        return len(self._conversations)

    def count(self, prefix: int, conversation: Conversation) -> bool:
        """Count a conversation whose prompt begins with a prefix (a hash). Returns whether the prefix is shared now."""
        known = self._conversations.get(prefix)
        if known is None:
            known = []
            self._conversations.put(prefix, known)
        if known is _SHARED:
            return True
        this = (conversation.id, conversation.length)
        if this in known:
            return False
        for position, earlier in enumerate(known):
            if conversation.continues(earlier):
                known[position] = this
                return False
        known.append(this)
        if len(known) < self._shared_by:
            return False
        self._conversations.put(prefix, _SHARED)
        return True


@dataclass(slots=True)
class _Count:
    requests: int = 0
    shared: bool = False


class Tally:
    """Counts findings, with LRU eviction.

    Args:
        max_findings_per_space: Capacity per space.
        max_findings: Total capacity; whole spaces are evicted. A finding takes about 400 bytes.
    """

    def __init__(self, max_findings_per_space: int, max_findings: int) -> None:
        self._max_per_space = max_findings_per_space
        self._spaces: BoundedCache[str, BoundedCache[PersonalFinding, _Count]] = BoundedCache(max_weight=max_findings)

    def __len__(self) -> int:
        return self._spaces.weight

    def count(self, space: str, finding: PersonalFinding, *, shared: bool) -> bool:
        """Count a request with a finding.

        Returns:
            Whether the finding is new, or shared for the first time.
        """
        findings = self._spaces.get(space)
        if findings is None:
            findings = BoundedCache(self._max_per_space)
        known = findings.get(finding)
        if known is None:
            known = _Count()
            findings.put(finding, known)
            self._spaces.put(space, findings, weight=len(findings))
        is_new = known.requests == 0 or (shared and not known.shared)
        known.requests += 1
        known.shared |= shared
        return is_new

    def reports(self, space: str) -> Sequence[FindingReport]:
        """Findings in a space, most frequent first."""
        counts = self._spaces.peek(space)
        if counts is None:
            return ()
        reports = [FindingReport(finding, count.requests, count.shared) for finding, count in counts.items()]
        return sorted(reports, key=lambda report: (-report.requests, report.finding.path, report.finding.start))


def beginning_of_findings(
    beginning: Beginning, found: Mapping[int, Sequence[Hit]], *, space: str, seed: int
) -> Iterator[tuple[Passage, Hit, int]]:
    """Every finding with the hash of the prompt up to the finding's end.

    Args:
        beginning: The prompt.
        found: Findings by position of the passage in the beginning.
        space: The prompt's space; equal texts in different spaces have different hashes.
        seed: Seed of the hash.
    """
    running = xxhash.xxh3_64(space.encode(), seed=seed)
    last = max(found)
    for position, part in enumerate(beginning[: last + 1]):
        if isinstance(part, bytes):
            running.update(part)
            continue
        done = 0
        for hit in found.get(position, ()):
            end = hit.start + hit.length
            running.update(part.text[done:end].encode())
            done = end
            yield part, hit, running.intdigest()
        running.update(part.text[done:].encode())


def conversation_of(beginning: Beginning, session: str | None, *, seed: int) -> Conversation:
    """Conversation of a prompt: its session, or else all prompts with the same first user message."""
    if session is not None:
        return Conversation(xxhash.xxh3_64_intdigest(session.encode("utf-8", "surrogatepass"), seed=seed))
    if len(beginning) == 1 and isinstance(prompt := beginning[0], Passage):
        text = prompt.text

        def hash_of_first(length: int) -> int:
            return xxhash.xxh3_64_intdigest(text[:length].encode(), seed=seed)

        return Conversation(hash_of_first(len(text)), len(text), hash_of_first)
    running = xxhash.xxh3_64(seed=seed)
    for part in beginning:
        running.update(part.text.encode() if isinstance(part, Passage) else part)
    return Conversation(running.intdigest())


_MAX_WAITING = 4096
_MAX_PIECES = 4096
"""Messages and content parts of a request, which are processed without yielding to the event loop."""
_MAX_WAITING_BYTES = 32 * 1024 * 1024
_MAX_FINDINGS = 1000
"""Findings counted per prompt. Each takes about 10 microseconds on the event loop."""
_PORTION = 100
"""Findings, or prompts of a request, processed before yielding to the event loop."""

_MAX_ASKING = 4
"""Requests whose findings are counted at the same time where a detector is asked. While it hangs, a call on trial holds
one of them, and the others go on with what the patterns found."""

_log = structlog.get_logger("gateway.canon")


class _PendingCount(NamedTuple):
    request: ChatRequest
    space: str


class Counting:
    """Queue of requests whose findings are counted, at most 1,000 per prompt.

    Args:
        scanner: Searches the texts.
        shared: Decides which prefixes are shared.
        tally: Counts the findings.
        observer: Notified of findings and skipped requests.
        max_characters: Prompts with more characters to search are skipped.
        everywhere: Whether all messages are searched, or only the leading ones.
        seed: Seed of the prefix hashes.
    """

    def __init__(
        self,
        scanner: Scanner,
        shared: SharedPrefixes,
        tally: Tally,
        observer: PersonalDataObserver,
        *,
        max_characters: int,
        everywhere: bool,
        seed: int,
    ) -> None:
        self.scanner = scanner
        self.shared = shared
        self.max_characters = max_characters
        self.everywhere = everywhere
        self._tally = tally
        self._observer = observer
        self._seed = seed
        self._waiting: deque[_PendingCount] = deque()
        self._waiting_bytes = 0
        self._awake = asyncio.Event()
        self._asking = asyncio.Semaphore(_MAX_ASKING)

    def add(self, request: ChatRequest, space: str) -> None:
        """Enqueue a request; a full queue skips it, and the observer counts that.

        A chat needs no counting if its texts were searched before without a finding, or if that takes no time.
        """
        if request.endpoint is Endpoint.CHAT:
            # Each piece takes more than one byte: most bodies are too short for so many.
            if request.size > _MAX_PIECES and has_more_pieces(
                request, _MAX_PIECES, with_user=True, everywhere=self.everywhere
            ):
                self._observer.on_personal_data_skipped(request.caller.tenant)
                return
            passages = searched(request, everywhere=self.everywhere)
            if self.scanner.finds_nothing(passages, request.caller.tenant, self.max_characters):
                return
        full = len(self._waiting) >= _MAX_WAITING or self._waiting_bytes + request.size > _MAX_WAITING_BYTES
        if full and self._waiting:
            self._observer.on_personal_data_skipped(request.caller.tenant)
            return
        self._waiting.append(_PendingCount(request, space))
        self._waiting_bytes += request.size
        self._awake.set()

    async def run(self) -> None:
        """Process the queue until cancelled; yields to the event loop after each request."""
        async with asyncio.TaskGroup() as asking:
            while True:
                if not self._waiting:
                    self._awake.clear()
                    await self._awake.wait()
                pending = self._waiting.popleft()
                self._waiting_bytes -= pending.request.size
                if self.scanner.has_detector:
                    await self._asking.acquire()
                    asking.create_task(self._ask_and_count(pending), name="personal-data-detector")
                else:
                    await self._try_to_count(pending)
                await asyncio.sleep(0)

    async def _ask_and_count(self, pending: _PendingCount) -> None:
        try:
            await self._try_to_count(pending)
        finally:
            self._asking.release()

    async def _try_to_count(self, pending: _PendingCount) -> None:
        try:
            await self._count(pending.request, pending.space)
        except Exception as error:  # noqa: BLE001 - a failed report must not end the task
            # The type only: a message may quote the prompt.
            _log.error("personal_data_scan_failed", request_id=pending.request.request_id, error=type(error).__name__)

    async def _count(self, request: ChatRequest, space: str) -> None:
        # Most prompts have no findings: the other parts of a chat are read only if it has some.
        is_chat = request.endpoint is Endpoint.CHAT
        everywhere = self.everywhere
        prompts: Sequence[Sequence[Passage | bytes]]
        prompts = [searched(request, everywhere=everywhere)] if is_chat else beginnings(request)
        whole: Sequence[Beginning] = ()
        identities: Sequence[Beginning] = ()
        for number, passages in enumerate(prompts):
            if number % _PORTION == _PORTION - 1:
                await asyncio.sleep(0)
            texts = [part.text for part in passages if isinstance(part, Passage)]
            if sum(map(len, texts)) > self.max_characters:
                self._observer.on_personal_data_skipped(request.caller.tenant)
                continue
            try:
                hits: Sequence[tuple[Hit, ...]] = await self.scanner.find(texts, request.caller.tenant)
            except (Overloaded, TooSlow):
                self._observer.on_personal_data_skipped(request.caller.tenant)
                continue
            except DetectorFailed as failed:
                self._observer.on_personal_data_skipped(request.caller.tenant)
                hits = failed.hits
            if not any(hits):
                continue
            whole = whole or beginnings(request, everywhere=everywhere)
            identities = identities or (beginnings(request) if everywhere else whole)
            beginning = whole[number]
            places = [at for at, part in enumerate(beginning) if isinstance(part, Passage) and part.searched]
            found = {position: here for position, here in zip(places, hits, strict=True) if here}
            conversation = conversation_of(identities[number], request.qualified(request.session), seed=self._seed)
            each = beginning_of_findings(beginning, found, space=space, seed=self._seed)
            for counted, (passage, hit, prefix) in enumerate(islice(each, _MAX_FINDINGS), start=1):
                if counted % _PORTION == 0:
                    await asyncio.sleep(0)
                shared = self.shared.count(prefix, conversation)
                self._report(request, space, passage, hit, shared=shared)

    def _report(self, request: ChatRequest, space: str, passage: Passage, hit: Hit, *, shared: bool) -> None:
        finding = PersonalFinding(hit.kind, passage.name, hit.start, hit.length)
        is_new = self._tally.count(space, finding, shared=shared)
        self._observer.on_personal_data(request, space, finding, shared=shared, new=is_new)
