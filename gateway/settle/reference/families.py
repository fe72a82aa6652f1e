"""How the client families of one application differ in what they send in front.

Of each family (source) the variants of its frame are counted over the last hour. Where two families that are similar
send other variants for the most part, and neither sends the other's as well, a sample of each is compared. What changes
within one family over time, or from request to request, is no difference between families.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from gateway.settle.prompt_text import LEADING_ROLES, Message, PromptText
from gateway.settle.reference.frame import Frames, are_similar, similarity
from gateway.settle.reference.kept import Kept
from gateway.settle.reference.shared import text_bytes
from gateway.settle.reference.wording import masked
from gateway.values.explain import Difference, Reply
from gateway.values.reasons import Reason

_SLOT_SECONDS = 300
_SLOTS = 12
_SOURCES = 50
_VARIANTS = 8
_APPLICATION_BYTES = 700
_SOURCE_BYTES = 6_000
_LARGEST_PART = 32
_MEMO_PART = 8
_SHOWN = 100

_PER_REQUEST = frozenset({Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID, Reason.USER_DATA})
"""Differences between any two requests, whoever sends them."""


class Describe(Protocol):
    """Names the first difference of two prompts; None for none. See ``settle.difference``."""

    def __call__(
        self,
        before: PromptText,
        after: PromptText,
        *,
        before_source: str,
        after_source: str,
        same_conversation: bool,
        replies: Sequence[Reply],
        tools_first: bool,
    ) -> Difference | None:
        """The first difference."""
        ...


@dataclass(slots=True)
class _Source:
    """What one family sends.

    Attributes:
        counts: Requests by variant and time slot.
        variant: The one sent most.
        sample: What stands in front in a request of that.
        features: Of its frame.
        tools_first: As the template prints it.
        size: Bytes.
        described: How its variant differs from another family's, by that family: both variants, and the difference.
    """

    counts: dict[int, dict[int, int]] = field(default_factory=dict)
    variant: int | None = None
    sample: PromptText = field(default_factory=lambda: PromptText(()))
    features: frozenset[int] = frozenset()
    tools_first: bool = False
    size: int = 0
    described: dict[str, tuple[int | None, int | None, dict[str, Any] | None]] = field(default_factory=dict)

    def requests(self, variant: int, since: int) -> int:
        """Requests of a variant from a time slot on."""
        return sum(count for slot, count in self.counts.get(variant, {}).items() if slot >= since)

    def total(self, since: int) -> int:
        """All requests from a time slot on."""
        return sum(self.requests(variant, since) for variant in self.counts)


_Key = tuple[str, str]
"""Tenant and model."""


class Families:
    """The frames that the sources of each tenant and model send. Bounded in bytes; what was used least lately goes."""

    def __init__(self, describe: Describe, frames: Frames | None = None, max_bytes: int = 16 * 2**20) -> None:
        self._describe = describe
        self._frames = frames or Frames(max_bytes // _MEMO_PART)
        self._room = max_bytes - max_bytes // _MEMO_PART
        self._applications: OrderedDict[_Key, dict[str, _Source]] = OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """What all of it takes, about."""
        return self._bytes

    def note(self, kept: Kept, now: float, *, tools_first: bool = False) -> None:
        """Count a request; one without leading messages and tools, or with huge ones, is not looked at.

        ``now`` is Unix seconds.
        """
        text = _in_front(kept.text)
        if not (text.messages or text.tools) or text_bytes(text) > self._room // _LARGEST_PART:
            return
        frame = self._frames.of(kept.text)
        variant = hash((frame.skeleton, tuple(message.form for message in text.messages)))
        slot = int(now // _SLOT_SECONDS)
        key = (kept.tenant, kept.model)
        sources = self._sources(key)
        source = sources.get(kept.source)
        if source is None:
            if len(sources) >= _SOURCES:
                self._drop_source(sources, min(sources, key=lambda name: sources[name].total(_since(slot))))
            source = sources[kept.source] = _Source(size=_SOURCE_BYTES)
            self._bytes += _SOURCE_BYTES
        _count(source, variant, slot)
        if source.variant != variant and _is_most(source, variant, _since(slot)):
            self._bytes -= source.size
            source.variant, source.sample, source.features = variant, text, frame.features
            source.tools_first = tools_first
            source.size = _SOURCE_BYTES + text_bytes(text)
            self._bytes += source.size
        while self._bytes > self._room:
            self._drop_application(next(iter(self._applications)))

    def shown(self, now: float, model: str | None = None, tenant: str | None = None) -> list[dict[str, Any]]:
        """What families send otherwise than a similar, larger one, by requests; at most 100. Ready for JSON.

        Each is ``tenant``, ``model``, ``source``, ``than`` (the larger family), ``requests`` (of the source with that
        difference, in the last hour) and ``difference`` with ``reason``, ``detail``, ``path``, ``said`` and the masked
        ``before`` (of ``than``) and ``after`` (of ``source``).
        """
        since = _since(int(now // _SLOT_SECONDS))
        rows: list[dict[str, Any]] = []
        for (tenant_id, model_id), sources in self._applications.items():
            if model in (None, model_id) and tenant in (None, tenant_id):
                rows += [{"tenant": tenant_id, "model": model_id} | row for row in self._differing(sources, since)]
        rows.sort(key=lambda row: (-row["requests"], row["tenant"], row["model"], row["source"], row["than"]))
        return rows[:_SHOWN]

    def _differing(self, sources: dict[str, _Source], since: int) -> list[dict[str, Any]]:
        """Each variant that families send is compared with each larger similar one, as its largest family sends it."""
        rows = []
        largest: dict[int, tuple[str, _Source]] = {}
        totals = {name: source.total(since) for name, source in sources.items()}
        for name in sorted((name for name in sources if totals[name]), key=lambda name: (-totals[name], name)):
            source = sources[name]
            if source.variant is None or not source.requests(source.variant, since):
                continue
            for than, other in largest.values():
                if self._are_variants(source, other, since):
                    difference = self._difference(than, other, name, source)
                    if difference is not None:
                        requests = source.requests(source.variant, since)
                        rows.append({"source": name, "than": than, "requests": requests, "difference": difference})
            largest.setdefault(source.variant, (name, source))
        return rows

    def _are_variants(self, source: _Source, other: _Source, since: int) -> bool:
        if source.variant is None or other.variant is None or source.variant == other.variant:
            return False
        if source.requests(other.variant, since) or other.requests(source.variant, since):
            return False
        shared = len(source.features & other.features)
        return are_similar(shared, similarity(source.features, other.features), is_opening=False)

    def _difference(self, than: str, other: _Source, name: str, source: _Source) -> dict[str, Any] | None:
        known = source.described.get(than)
        if known is None or known[:2] != (other.variant, source.variant):
            known = (other.variant, source.variant, self._described(than, other, name, source))
            source.described[than] = known
        return known[2]

    def _described(self, than: str, other: _Source, name: str, source: _Source) -> dict[str, Any] | None:
        found = self._describe(
            _asked(other.sample),
            _asked(_worded_as(source.sample, other.sample)),
            before_source=than,
            after_source=name,
            same_conversation=False,
            replies=(),
            tools_first=source.tools_first,
        )
        if found is None or found.reason in _PER_REQUEST:
            return None
        return {
            "reason": str(found.reason),
            "detail": found.detail,
            "path": found.path,
            "said": found.said,
            "before": found.before,
            "after": found.after,
        }

    def _sources(self, key: _Key) -> dict[str, _Source]:
        if key not in self._applications:
            self._applications[key] = {}
            self._bytes += _APPLICATION_BYTES
        self._applications.move_to_end(key)
        return self._applications[key]

    def _drop_source(self, sources: dict[str, _Source], name: str) -> None:
        self._bytes -= sources.pop(name).size

    def _drop_application(self, key: _Key) -> None:
        self._bytes -= _APPLICATION_BYTES + sum(source.size for source in self._applications.pop(key).values())


def _in_front(text: PromptText) -> PromptText:
    """A prompt's frame alone."""
    messages = text.leading or tuple(each for each in text.messages if each.role in LEADING_ROLES)
    return PromptText(messages, text.tools, text.arguments)


def _asked(sample: PromptText) -> PromptText:
    """A sample with a question behind it: a message that is only appended is no difference."""
    return replace(sample, messages=(*sample.messages, Message("user", "?")))


def _worded_as(sample: PromptText, other: PromptText) -> PromptText:
    """A sample with the lines of another where they differ in the time and the like only, which would come first."""
    lines = {masked(line): line for message in other.messages for line in message.text.split("\n")}
    return replace(
        sample,
        messages=tuple(
            replace(message, text="\n".join(lines.get(masked(line), line) for line in message.text.split("\n")))
            for message in sample.messages
        ),
    )


def _since(slot: int) -> int:
    """The first time slot that still counts."""
    return slot - _SLOTS + 1


def _count(source: _Source, variant: int, slot: int) -> None:
    for each, slots in list(source.counts.items()):
        for old in [past for past in slots if past < _since(slot)]:
            del slots[old]
        if not slots:
            del source.counts[each]
    if variant not in source.counts and len(source.counts) >= _VARIANTS:
        del source.counts[min(source.counts, key=lambda each: source.requests(each, _since(slot)))]
    slots = source.counts.setdefault(variant, {})
    slots[slot] = slots.get(slot, 0) + 1


def _is_most(source: _Source, variant: int, since: int) -> bool:
    """Whether no other variant was sent more often."""
    own = source.requests(variant, since)
    return all(source.requests(each, since) <= own for each in source.counts)
