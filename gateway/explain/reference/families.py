"""Finds how the client families of one application differ in their leading messages and tools.

For each family (source) it counts the variants of its frames over the last hour: leading messages with varying values
masked, names of tools, and the number of user messages before the question. Variants of two families belong to one
application if each is the most similar one among the other family's variants. A variant that both families send is no
difference between them: it changed over time, or changes from request to request.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple

from msgspec.structs import replace

from gateway.core.bounded_cache import BoundedCache
from gateway.core.explanation import Difference
from gateway.core.reasons import Reason
from gateway.explain.bodies import weight_of
from gateway.explain.prompt_text import LEADING_ROLES, Message, PromptText, questions_in_front
from gateway.explain.reference.family_variants import FamilyVariants, Matching, Variant, VariantCounts, likeness_of
from gateway.explain.reference.frame import Frames, frame_messages, masked
from gateway.explain.reference.kept_request import KeptRequest

_SLOT_SECONDS = 300
_SLOTS = 12
_SOURCES = 50
_VARIANTS = 32
_VARIANTS_IN_ALL = 256
_DESCRIBED = 16
_QUESTION_CHARACTERS = 200
_APPLICATION_BYTES = 1_000
_VARIANT_BYTES = 6_000
_SOURCE_BYTES = 600
_COUNT_BYTES = 900
_LARGEST_PART = 32
_MEMO_PART = 8
_SHOWN_PART = 4
_SHOWN_BYTES = 1_500
_SHOWN = 100

_PER_REQUEST = frozenset({Reason.DYNAMIC_TIME, Reason.DYNAMIC_ID, Reason.USER_DATA})
"""Reasons for which any two requests differ, also of one family."""


_Key = tuple[str, str]
"""Tenant and model."""


class _Shown(NamedTuple):
    """What a prompt shows of its application.

    Attributes:
        front: The prompt with only its frame.
        size: Bytes of it.
        own: Hash of its frame.
        hidden: As ``_hidden_questions``.
        number: Number of its variant.
    """

    front: PromptText
    size: int
    own: int
    hidden: tuple[Message, ...]
    number: int


class Families:
    """The frames sent by each source, per tenant and model. Bounded in bytes; the least recently used are dropped.

    Args:
        describe: ``explain.diff.find_difference``.
        frames: Finds the frames of prompts.
        max_bytes: Approximate bound of the memory.
    """

    def __init__(
        self, describe: Callable[..., Difference | None], frames: Frames | None = None, max_bytes: int = 16 * 2**20
    ) -> None:
        self._describe = describe
        self._frames = frames or Frames(max_bytes // _MEMO_PART)
        self._budget_bytes = max_bytes - max_bytes // _MEMO_PART
        self._shown: BoundedCache[tuple[object, ...], _Shown] = BoundedCache(max_weight=max_bytes // _SHOWN_PART)
        self._sent: OrderedDict[_Key, FamilyVariants] = OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """Approximate memory."""
        return self._bytes

    def note(self, kept: KeptRequest, now: float, *, tools_first: bool = False) -> int:
        """Count a request, unless it has no leading messages and tools, or huge ones. ``now`` is Unix seconds.

        Returns:
            The number of its variant, for ``count``.
        """
        shown = self._read(kept.text)
        if shown is None or shown.size > self._budget_bytes // _LARGEST_PART:
            return 0
        own, hidden, number = shown.own, shown.hidden, shown.number
        sent = self._sent_by((kept.tenant, kept.model))
        if number not in sent.variants:
            while len(sent.variants) >= _VARIANTS_IN_ALL:
                self._drop_variant(sent, next(iter(sent.variants)))
            sample = replace(shown.front, messages=(*shown.front.messages, *hidden))
            size = shown.size + _VARIANT_BYTES + weight_of(PromptText(hidden))
            sent.variants[number] = Variant(sample, own, len(hidden), self._frames, tools_first, size)
            self._bytes += size
        self.count(kept.tenant, kept.model, kept.source, number, now)
        return number

    def count(self, tenant: str, model: str, source: str, number: int, now: float) -> bool:
        """Count a request of a variant, 0 for none; returns whether the variant is still known."""
        sent = self._sent.get((tenant, model))
        if number and (sent is None or number not in sent.variants):
            return False
        if number and sent is not None:
            self._sent.move_to_end((tenant, model))
            sent.variants.move_to_end(number)
            self._count(sent, source, number, int(now // _SLOT_SECONDS))
            while self._bytes > self._budget_bytes:
                self._drop_oldest()
        return True

    def forget_texts(self) -> None:
        """Drop what is remembered of prompts; it is worked out again when needed."""
        self._shown.clear()
        self._frames.forget_texts()

    def _read(self, text: PromptText) -> "_Shown | None":
        """The variant that a prompt shows; None without leading messages and tools."""
        messages, hidden = frame_messages(text), _hidden_questions(text)
        if not messages and not text.tools:
            return None
        # Documents are left out: they belong to the question.
        arguments = {name: value for name, value in text.arguments.items() if name != "documents"}
        key = messages, text.tools, tuple(arguments.items()), hidden
        known = self._shown.get(key)
        if known is None:
            front = PromptText(messages, text.tools, arguments)
            own = hash((self._frames.of(text).skeleton, tuple([message.form for message in messages])))
            known = _Shown(front, _bytes_of(front), own, hidden, hash((own, len(hidden))))
            self._shown.put(key, known, weight=_SHOWN_BYTES + known.size)
        return known

    def shown(self, now: float, model: str | None = None, tenant: str | None = None) -> list[dict[str, Any]]:
        """Differences of families to a larger family of one application, JSON-ready; at most 100, most requests first.

        Each has ``tenant``, ``model``, ``source``, ``than`` (the family with more requests of that application; on a
        tie the one with fewer messages), ``requests`` (of the source with that difference, in the last hour) and
        ``difference`` with ``reason``, ``detail``, ``path``, ``said`` and the masked ``before`` (of ``than``) and
        ``after`` (of ``source``).
        """
        since = _since(int(now // _SLOT_SECONDS))
        rows: list[dict[str, Any]] = []
        for (tenant_id, model_id), sent in self._sent.items():
            if model in (None, model_id) and tenant in (None, tenant_id) and len(sent.sources) > 1:
                rows += [{"tenant": tenant_id, "model": model_id} | row for row in self._differing(sent, since)]
        rows.sort(key=lambda row: (-row["requests"], row["tenant"], row["model"], row["source"], row["than"]))
        return rows[:_SHOWN]

    def _differing(self, sent: FamilyVariants, since: int) -> list[dict[str, Any]]:
        """One row per family, larger family and difference.

        Variants of one application with the same difference, such as a user's name in each, share a row.
        """
        rows: list[tuple[Variant, dict[str, Any]]] = []
        for source, number, than, other in Matching(sent, since).deviations():
            variant = sent.variants[number]
            difference = self._difference(sent, (than, other), (source, number))
            if difference is None:
                continue
            requests = sent.sources[source].requests(number, since)
            for like, row in rows:
                is_same = (row["source"], row["than"]) == (source, than) and _is_same_difference(
                    row["difference"], difference
                )
                if is_same and likeness_of(like, variant):
                    row["requests"] += requests
                    break
            else:
                row = {"source": source, "than": than, "requests": requests, "difference": difference}
                rows.append((variant, row))
        return [row for _, row in rows]

    def _difference(
        self, sent: FamilyVariants, before: tuple[str, int], after: tuple[str, int]
    ) -> dict[str, Any] | None:
        """The difference between two variants of two families; cached."""
        (than, other), (source, number) = before, after
        variant = sent.variants[number]
        key = (other, than, source)
        if key not in variant.described:
            if len(variant.described) >= _DESCRIBED:
                variant.described.clear()
            variant.described[key] = self._described(than, sent.variants[other], source, variant)
        return variant.described[key]

    def _described(self, than: str, other: Variant, name: str, variant: Variant) -> dict[str, Any] | None:
        found = self._describe(
            _asked(other.sample),
            _asked(_worded_as(variant.sample, other.sample)),
            before_source=than,
            after_source=name,
            same_conversation=False,
            replies=(),
            tools_first=variant.tools_first,
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

    def _sent_by(self, key: _Key) -> FamilyVariants:
        if key not in self._sent:
            self._sent[key] = FamilyVariants()
            self._bytes += _APPLICATION_BYTES
        self._sent.move_to_end(key)
        return self._sent[key]

    def _count(self, sent: FamilyVariants, name: str, number: int, slot: int) -> None:
        """Count a request of a variant; drop counts older than an hour, and those beyond the bounds."""
        since = _since(slot)
        if name not in sent.sources:
            sent.sources[name] = VariantCounts(slot)
            self._bytes += _SOURCE_BYTES
        source = sent.sources[name]
        if number not in source.counts:
            source.counts[number] = {}
            sent.variants[number].senders.add(name)
            self._bytes += _COUNT_BYTES
        source.counts[number][slot] = source.counts[number].get(slot, 0) + 1
        if source.slot != slot:
            source.slot = slot
            for old, slots in list(source.counts.items()):
                source.counts[old] = {each: count for each, count in slots.items() if each >= since}
                if not source.counts[old]:
                    self._drop_count(sent, name, old)
        if len(source.counts) > _VARIANTS:
            # Older time slots are dropped already.
            self._drop_count(sent, name, _rarest(source.counts, number))
        if len(sent.sources) > _SOURCES:
            least = min(sent.sources.keys() - {name}, key=lambda each: (sent.sources[each].total(since), each))
            for old in list(sent.sources[least].counts):
                self._drop_count(sent, least, old)

    def _drop_count(self, sent: FamilyVariants, name: str, number: int) -> None:
        """Drop the count of a variant for a family; also the family or the variant if nothing else is left of it."""
        source, variant = sent.sources[name], sent.variants[number]
        del source.counts[number]
        variant.senders.discard(name)
        self._bytes -= _COUNT_BYTES
        if not source.counts:
            del sent.sources[name]
            self._bytes -= _SOURCE_BYTES
        if not variant.senders:
            del sent.variants[number]
            self._bytes -= variant.size

    def _drop_variant(self, sent: FamilyVariants, number: int) -> None:
        for name in list(sent.variants[number].senders):
            self._drop_count(sent, name, number)

    def _drop_oldest(self) -> None:
        key, sent = next(iter(self._sent.items()))
        self._drop_variant(sent, next(iter(sent.variants)))
        if not sent.variants:
            del self._sent[key]
            self._bytes -= _APPLICATION_BYTES


def _rarest(counts: Mapping[int, Mapping[int, int]], kept: int) -> int:
    """The variant with the fewest requests, the oldest on a tie; never ``kept``."""
    rarest, fewest = 0, inf
    for number, slots in counts.items():
        requests = sum(slots.values())
        if requests < fewest and number != kept:
            rarest, fewest = number, requests
            if requests == 1:
                break
    return rarest


def _is_same_difference(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] == other[name] for name in ("reason", "detail", "path", "said"))


def _hidden_questions(text: PromptText) -> tuple[Message, ...]:
    """The user messages after the leading ones, except the last, which is the question; each shortened."""
    count, start = questions_in_front(text) - 1, len(text.leading)
    if count < 1 or (not start and any(message.role in LEADING_ROLES for message in text.messages)):
        return ()
    hidden = text.messages[start : start + count]
    return tuple(Message(message.role, message.text[:_QUESTION_CHARACTERS]) for message in hidden)


def _bytes_of(text: PromptText) -> int:
    return weight_of(text) + sum(map(len, text.arguments.values()))


def _asked(sample: PromptText) -> PromptText:
    """A sample followed by a question: without it, an appended message would be no difference."""
    return replace(sample, messages=(*sample.messages, Message("user", "?")))


def _worded_as(sample: PromptText, other: PromptText) -> PromptText:
    """A sample with lines of the other where they differ only in varying values, which would be found first."""
    lines = {masked(line): line for message in other.messages for line in message.text.split("\n")}
    return replace(
        sample,
        messages=tuple(
            replace(message, text="\n".join(lines.get(masked(line), line) for line in message.text.split("\n")))
            for message in sample.messages
        ),
    )


def _since(slot: int) -> int:
    """The oldest time slot that counts."""
    return slot - _SLOTS + 1
