"""Measures what rules save, request by request.

Every request has the form that was sent and forms with or without a rule. For each form the blocks computed before in
that form are known, and so the tokens that could have been reused: the difference to the sent form is the effect of the
rule, provided that caches hold all computed blocks. Prompts that no rule changes are equal in all forms and looked up
once.

Not every request is tried: see ``_weight``. What was computed before it has to be known in all forms as well, so the
reference of a tried request is tried late if it was not before.

Also masks edits for display, and drops slots that ``dynamic-suffix`` already finds.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import orjson
from xxhash import xxh3_64_intdigest

from gateway.canon.context_memory import ContextMemory
from gateway.canon.rule import REMOVED, Edit, Fields
from gateway.canon.rulebook import Rulebook, rulebook
from gateway.canon.texts import messages
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import ALL_RULES, EditShown, RuleMode, RuleName, RuleOutcome
from gateway.core.errors import TokenizerUnavailable
from gateway.core.explanation import Explanation, RequestRecord, VaryingSlot
from gateway.core.json_edit import Path
from gateway.core.prompt import TOKEN_BYTES, TokenSource
from gateway.core.reasons import AVOIDABLE, REASONS, Rung
from gateway.core.request import Endpoint
from gateway.explain.bodies import Bodies
from gateway.explain.masked_text import masked
from gateway.explain.seen import PromptHashes
from gateway.explain.seen.block_tree import NUMBERS, BlockTree, Hashes, note
from gateway.explain.whatif.encoders import Encoders, Load, load_encoder
from gateway.explain.whatif.forms import (
    EVERY_FORM,
    FORMS,
    RULES,
    SENT,
    TOGETHER,
    Form,
    Forms,
    number_of,
)
from gateway.explain.worker.explain_messages import CanonOptions, Notice

MAX_EDITS = 20
_SHOWN_CHARS = 120
_SAID_CHARS = 200
_PATH_CHARS = 200
_COUNTED_CHARS = 65_536
"""Longer values are not encoded just to count their tokens."""


if TYPE_CHECKING:
    from gateway.tokenize.local import LocalEncoder
_BLOCK_BYTES = 16


class FormBlocks(NamedTuple):
    """A prompt in one form.

    Attributes:
        key: Key of its prefix space, in its epoch.
        reusable_blocks: Number of reusable blocks: the last token is always computed.
        computed: Block hashes of the prompt with its reply: one chain per reply.
    """

    key: int
    reusable_blocks: int
    computed: Sequence[Hashes]


class SeenForms:
    """Each block has a mark for every form in which it was computed, and the time of the latest one.

    Args:
        hashes: Hashes prompts; it remembers what the explainer hashed a moment ago.
        blocks: Capacity, at 16 bytes per block.
        ttl_seconds: Lifetime of a mark.
    """

    def __init__(self, hashes: PromptHashes, blocks: int, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._hashes = hashes
        self._tree = BlockTree(_BLOCK_BYTES * blocks)
        self._began_at: float | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the blocks."""
        return self._tree.nbytes

    def prompt(self, record: RequestRecord, ids: bytes) -> FormBlocks:
        """The block hashes of a prompt.

        Args:
            record: The request.
            ids: The prompt's token ids, little-endian u32.
        """
        where = record.where
        # The epoch separates a space from itself before a reset.
        key = self._hashes.space_root(where, record.life)
        replies = [reply.ids for reply in record.replies if reply.ids] or [b""]
        computed = [self._hashes.of(record, ids, reply) for reply in replies]
        reusable = max(len(ids) // TOKEN_BYTES - 1, 0) // record.block_size
        return FormBlocks(key, reusable, computed)

    def take(self, prompt: FormBlocks, record: RequestRecord, forms: int) -> list[int]:
        """Record a computed prompt.

        Args:
            prompt: The prompt.
            record: Its request.
            forms: Bit mask of the forms with this prompt.

        Returns:
            For every form, the number of leading tokens computed before.
        """
        at = self._at(record)
        since, now = note(at - self.ttl_seconds, 0), note(at, forms)

        def marked(noted: int) -> int:
            # A request that is tried late is older than what was noted.
            return max(now, noted) | (now | noted) & NUMBERS if noted >= since else now

        before, *_ = [self._tree.write(prompt.key, computed, marked) for computed in prompt.computed]
        marks, left, tokens = EVERY_FORM, prompt.reusable_blocks, [0] * FORMS
        in_every_form = 0
        for noted, blocks in before:
            marks &= noted if noted >= since else 0
            counted = min(blocks, left) * record.block_size
            left -= blocks
            if marks == EVERY_FORM:
                in_every_form += counted
            elif marks:
                for number in range(FORMS):
                    if marks >> number & 1:
                        tokens[number] += counted
            if not marks or left <= 0:
                break
        return [in_every_form + each for each in tokens]

    def _at(self, record: RequestRecord) -> float:
        if self._began_at is None:
            self._began_at = record.at
        return max(record.at - self._began_at, 0.0)


def edits_shown(forms: Sequence[Form], encode: Callable[[str], bytes] | None) -> tuple[EditShown, ...]:
    """The first edits of every form, in order per rule.

    Args:
        forms: The forms.
        encode: Returns the token ids of a text; None if no tokenizer is available.
    """
    ranked = [[(form, edit) for edit in form.edits] for form in forms if form.rule != ALL_RULES]
    # Round-robin over the rules, so that a rule with many edits does not displace the others.
    turns = chain.from_iterable(zip_longest(*(each[:MAX_EDITS] for each in ranked)))
    chosen = [pair for pair in turns if pair is not None][:MAX_EDITS]
    order = [form.number for form in forms]
    chosen.sort(key=lambda pair: order.index(pair[0].number))
    return tuple(_shown(form, edit, encode) for form, edit in chosen)


def _shown(form: Form, edit: Edit, encode: Callable[[str], bytes] | None) -> EditShown:
    before, after = _tokens(edit.before, encode), _tokens(edit.after, encode)
    return EditShown(
        form.rule,
        form.mode,
        edit.what,
        edit.place[:_PATH_CHARS],
        edit.summary[:_SAID_CHARS],
        None if before is None or after is None else after - before,
        _masked(edit.before),
        _masked(edit.after),
    )


def _tokens(value: Any, encode: Callable[[str], bytes] | None) -> int | None:
    if value is REMOVED or value is None:
        return 0
    if encode is None:
        return None
    if not isinstance(value, str):
        try:
            value = orjson.dumps(value).decode()
        except TypeError:
            return None
    return len(encode(value)) // TOKEN_BYTES if len(value) <= _COUNTED_CHARS else None


def _masked(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return masked(value[:_SHOWN_CHARS]) + ("…" if len(value) > _SHOWN_CHARS else "")


_NUMBER = RULES.index(RuleName.DYNAMIC_SUFFIX)


def still_open(
    slot: VaryingSlot | None, modes: Sequence[RuleMode], sent: Fields, forms: Sequence[Form]
) -> VaryingSlot | None:
    """The slot if it is worth suggesting: the rule is in use and does not find it already.

    Args:
        slot: A varying value in a request.
        modes: Rule modes of the request.
        sent: Body of the request as sent.
        forms: Forms of the request. Applied rules are ignored: values they moved do not vary any more.
    """
    if slot is None or len(modes) <= _NUMBER or modes[_NUMBER] is RuleMode.OFF:
        return None
    found = (
        edit
        for form in forms
        if form.rule == RuleName.DYNAMIC_SUFFIX and form.mode is RuleMode.OBSERVE
        for edit in form.edits
    )
    return None if any(_is_at(edit, slot, sent) for edit in found) else slot


def _is_at(edit: Edit, slot: VaryingSlot, sent: Fields) -> bool:
    if edit.path[:2] != ("messages", slot.message) or edit.start is None or not isinstance(edit.before, str):
        return False
    start = edit.start + _texts_in_front(sent, edit.path)
    return start < slot.end and slot.start < start + len(edit.before)


def _texts_in_front(sent: Fields, path: Path) -> int:
    """Characters of a message's text before a content part, with a line end between parts."""
    if len(path) < 4:
        return 0
    parts = messages(sent)[int(path[1])].get("content") or ()
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts[: int(path[3])]]
    return sum(len(text) + 1 for text in texts if isinstance(text, str))


_MEMORY_BYTES = 32 * 1024 * 1024
_HASHES = 1 << 64

_UNEXPLAINED = Explanation(0, 0, True, (), ())

_OF_PROMPTS = frozenset(each for each in AVOIDABLE if REASONS[each].rung is Rung.REUSABLE)
"""Avoidable reasons in the prompts themselves, which rules may remove."""


class WhatIf:
    """Observes requests in the order of their replies.

    Args:
        options: Settings of the rules, and tokenizers.
        hashes: Hashes prompts.
        seen_blocks: Capacity of the memory of blocks, as for ``SeenForms``.
        ttl_seconds: Lifetime of its entries, and of texts.
        share: Share of conversations that are tried even if nothing is avoidable in them.
        untried: Gives the request of a tenant with an id, if it can still be compared with, and only once.
        bodies: Parses bodies.
        load: Loads a tokenizer.
        build: Builds the rules.
    """

    def __init__(
        self,
        options: CanonOptions,
        hashes: PromptHashes,
        *,
        seen_blocks: int,
        ttl_seconds: float,
        share: float = 1.0,
        untried: Callable[[str, str], RequestRecord | None] = lambda *_: None,
        bodies: Bodies | None = None,
        load: Load = load_encoder,
        build: Callable[[CanonSettings], Rulebook] = rulebook,
    ) -> None:
        self._options = options
        self._share = share
        self._untried = untried
        self._bodies = bodies or Bodies()
        self._build = build
        self._encoders = Encoders(options.models, load)
        self._memory = ContextMemory(_MEMORY_BYTES, ttl_seconds)
        self._seen = SeenForms(hashes, seen_blocks, ttl_seconds)
        self._take_settings(options)

    def configure(self, options: CanonOptions, share: float) -> None:
        """Apply other rules and another share. Blocks recorded under the previous rules stay recorded."""
        if options.settings != self._options.settings:
            self._take_settings(options)
        self._encoders.configure(options.models)
        self._options, self._share = options, share

    @property
    def is_loading(self) -> bool:
        """Whether a tokenizer is being loaded."""
        return self._encoders.is_loading

    def load_tokenizers(self) -> None:
        """Load all tokenizers now, instead of with the first request of their model, in a thread."""
        self._encoders.load_all()

    def notices(self) -> Sequence[Notice]:
        """Takes the notices added since the last call."""
        return self._encoders.notices()

    def observed(self, record: RequestRecord, explanation: Explanation) -> Explanation:
        """The explanation with the effects of rules added; records the blocks of a request that is tried."""
        modes = record.canonical.modes
        if not modes or len(record.parts) != 1 or record.block_size < 1:
            return msgspec.structs.replace(explanation, slot=None)
        weight = self._weight(record, explanation)
        if not weight:
            kept = explanation.slot if explanation.slot and explanation.slot.is_kept else None
            return msgspec.structs.replace(
                explanation,
                slot=still_open(kept, modes, {}, ()),
                left_out=(
                    _is_on(record)
                    and record.token_source == TokenSource.LOCAL
                    and not self._encoders.is_unavailable(record)
                ),
            )
        if weight == 1 and explanation.reference is not None:
            before = self._untried(record.tenant, explanation.reference.request_id)
            if before is not None:
                self._tried(before, _UNEXPLAINED, 0)
        tried = self._tried(record, explanation, weight)
        if tried.observed:
            self._untried(record.tenant, record.request_id)
        return tried

    def _weight(self, record: RequestRecord, explanation: Explanation) -> float:
        """For how many requests this one counts, as ``Explanation.observed``; 0 if it is not tried.

        Rules save tokens where a prompt has changed, and what they change is known where they are applied.
        Of other requests little is expected: conversations are chosen by a hash, which is another one than
        ``explain.max_cpu_share`` chooses by.
        """
        slot = explanation.slot
        if (
            self._share >= 1
            or record.canonical.asked
            or (slot is not None and not slot.is_kept)
            or any(each.tokens and each.reason in _OF_PROMPTS for each in explanation.missed)
        ):
            return 1
        named = f"{record.tenant}\n{explanation.conversation or record.request_id}".encode("utf-8", "replace")
        return 1 / self._share if xxh3_64_intdigest(named) < self._share * _HASHES else 0

    def _tried(self, record: RequestRecord, explanation: Explanation, weight: float) -> Explanation:
        modes, is_on = record.canonical.modes, _is_on(record)
        sent = self._bodies.fields(record.body)
        if sent is None:
            return msgspec.structs.replace(explanation, slot=None)
        forms = self._forms.of(record, sent, self._encoders.loaded(record.model)) if is_on else []
        encoder = self._encoders.of(record, sent) if forms and record.token_source == TokenSource.LOCAL else None
        edits = edits_shown(forms, encoder.encode_text if encoder else None) if forms else ()
        prompts = self._prompts(record, forms, encoder)
        observed: float = 0
        if prompts is None:
            outcomes = tuple(
                RuleOutcome(form.rule, form.mode, len(form.edits), 0, 0)
                for form in forms
                if form.mode is RuleMode.APPLY
            )
        else:
            outcomes = self._outcomes(record, forms, prompts)
            # If changed requests cannot be encoded, counting only unchanged ones would make every share too small.
            observed = weight if is_on and not self._encoders.is_unavailable(record) else 0
        return msgspec.structs.replace(
            explanation,
            edits=edits,
            slot=still_open(explanation.slot, modes, sent, forms),
            canonical=outcomes,
            observed=observed,
        )

    def _outcomes(
        self, record: RequestRecord, forms: Sequence[Form], prompts: Mapping[int, FormBlocks]
    ) -> tuple[RuleOutcome, ...]:
        """The effect of each rule that is on, if it has any; records the blocks of all prompts."""
        numbers: dict[int, int] = {}
        for number, prompt in prompts.items():
            if number != SENT:
                numbers[id(prompt)] = numbers.get(id(prompt), 0) | 1 << number
        as_sent = self._seen.take(prompts[SENT], record, EVERY_FORM & ~sum(numbers.values()))
        found = {
            id(prompt): self._seen.take(prompt, record, numbers[id(prompt)])
            for prompt in {id(prompt): prompt for number, prompt in prompts.items() if number != SENT}.values()
        }
        if not forms and len(set(as_sent)) == 1:
            return ()
        edits = {form.number: len(form.edits) for form in forms}
        outcomes: list[RuleOutcome] = []
        for number, rule, mode in _active_rules(record.canonical.modes):
            seen = found[id(prompts[number])] if number in prompts else as_sent
            more = seen[number] - as_sent[SENT]
            more = max(min(-more if mode is RuleMode.APPLY else more, record.prompt_tokens), -record.prompt_tokens)
            if more or number in edits:
                outcomes.append(RuleOutcome(rule, mode, edits.get(number, 0), max(more, 0), max(-more, 0)))
        return tuple(outcomes)

    def _prompts(
        self, record: RequestRecord, forms: Sequence[Form], encoder: "LocalEncoder | None"
    ) -> dict[int, FormBlocks] | None:
        """The prompt as sent and in every differing form; None if one of them cannot be encoded."""
        if forms and encoder is None:
            return None
        prompts = {SENT: self._seen.prompt(record, record.parts[0])}
        done: dict[int, FormBlocks] = {}
        for form in forms:
            if form.fields is None:
                return None
            if id(form.fields) not in done:
                assert encoder is not None
                try:
                    parts = encoder.encode(Endpoint(record.endpoint), form.fields)
                except TokenizerUnavailable:
                    return None
                if len(parts) != 1:
                    return None
                done[id(form.fields)] = self._seen.prompt(record, parts[0])
            prompts[form.number] = done[id(form.fields)]
        return prompts

    def _take_settings(self, options: CanonOptions) -> None:
        settings = CanonSettings.model_validate_json(options.settings)
        self._memory.configure(_MEMORY_BYTES, settings.memory_ttl_seconds)
        self._forms = Forms(settings, self._build(settings), self._memory)


def _is_on(record: RequestRecord) -> bool:
    modes = record.canonical.modes
    return modes.count(RuleMode.OFF) < len(modes)


@lru_cache(maxsize=256)
def _active_rules(modes: tuple[RuleMode, ...]) -> Sequence[tuple[int, str, RuleMode]]:
    """Form number, name and mode of each rule that is on, and of all observed rules together."""
    rules: list[tuple[int, str, RuleMode]] = [
        (number_of(rule), str(rule), mode) for rule, mode in zip(RULES, modes, strict=False) if mode is not RuleMode.OFF
    ]
    if RuleMode.OBSERVE in modes:
        rules.append((TOGETHER, ALL_RULES, RuleMode.OBSERVE))
    return rules
