"""Works out what rules save, request by request.

Every request was sent in one form, and would have been sent in others. For each of them it is known which blocks were
sent before in that form, so it is known what would have been reused: the difference is what a rule brings, as far as
caches hold what was sent. Prompts that no rule changes are the same in all forms, and looked up once.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gateway.canon.building import rulebook
from gateway.canon.context_memory import ContextMemory
from gateway.canon.rulebook import Rulebook
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import ALL_RULES, RuleMode, RuleOutcome
from gateway.core.errors import TokenizerUnavailable
from gateway.core.explanation import Explanation, RequestRecord
from gateway.core.prompt import TOKEN_BYTES, TokenSource
from gateway.core.request import Endpoint
from gateway.explain.whatif.edits_shown import edits_shown
from gateway.explain.whatif.encoders import Encoders, Load, PromptEncoder, load_encoder
from gateway.explain.whatif.forms import FORMS, RULES, SENT, TOGETHER, Form, Forms, number_of, parsed
from gateway.explain.whatif.open_slots import still_open
from gateway.explain.whatif.seen_forms import FormBlocks, SeenForms
from gateway.explain.worker.explain_messages import CanonOptions, Notice
from gateway.tokenize.block_hashes import ChainHasher

_MEMORY_BYTES = 32 * 1024 * 1024
_EVERY_FORM = (1 << FORMS) - 1


class WhatIf:
    """Observes requests in the order in which they were answered.

    Args:
        terms: What rules there are.
        chains: Hashes prompts.
        seen_blocks: How many blocks are remembered.
        ttl_seconds: For how long.
        load: Loads a tokenizer.
        build: Builds the rules.
    """

    def __init__(
        self,
        terms: CanonOptions,
        chains: ChainHasher,
        *,
        seen_blocks: int,
        ttl_seconds: float,
        load: Load = load_encoder,
        build: Callable[[CanonSettings], Rulebook] = rulebook,
    ) -> None:
        self._terms = terms
        self._build = build
        self._encoders = Encoders(terms.models, load)
        self._memory = ContextMemory(_MEMORY_BYTES, ttl_seconds)
        self._seen = SeenForms(chains, seen_blocks, ttl_seconds)
        self._take_settings(terms)

    def configure(self, terms: CanonOptions) -> None:
        """Go by other rules from now on. What was sent before under others still counts as sent in their forms."""
        if terms.settings != self._terms.settings:
            self._take_settings(terms)
        self._encoders.configure(terms.models)
        self._terms = terms

    def notices(self) -> Sequence[Notice]:
        """What is to be logged since this was last asked."""
        return self._encoders.notices()

    def observed(self, finished: RequestRecord, explanation: Explanation) -> Explanation:
        """The explanation with what rules did, or would have done; remembers the request for those after it."""
        modes = finished.canonical.modes
        if not modes or len(finished.parts) != 1 or finished.block_size < 1:
            return msgspec.structs.replace(explanation, slot=None)
        sent = parsed(finished.body)
        if sent is None:
            return msgspec.structs.replace(explanation, slot=None)
        forms: list[Form] = []
        encoder = None
        if any(mode is not RuleMode.OFF for mode in modes):
            forms = self._forms.of(finished, sent, self._counter(finished))
            if forms and finished.token_source == TokenSource.LOCAL:
                encoder = self._encoders.of(finished, sent)
        explanation = msgspec.structs.replace(
            explanation,
            edits=edits_shown(forms, encoder.encode_text if encoder else None),
            slot=still_open(explanation.slot, modes, sent, forms),
        )
        prompts = self._prompts(finished, forms, encoder)
        if prompts is None:
            done = tuple(
                RuleOutcome(form.rule, form.mode, len(form.edits), 0, 0)
                for form in forms
                if form.mode is RuleMode.APPLY
            )
            return msgspec.structs.replace(explanation, canonical=done)
        outcomes = self._outcomes(finished, forms, prompts)
        # Where changed requests cannot be looked at, unchanged ones alone would make every share too small.
        observed = any(mode is not RuleMode.OFF for mode in modes) and not self._encoders.wanting(finished)
        return msgspec.structs.replace(explanation, canonical=outcomes, observed=observed)

    def _outcomes(
        self, finished: RequestRecord, forms: Sequence[Form], prompts: Mapping[int, FormBlocks]
    ) -> tuple[RuleOutcome, ...]:
        """What every rule that is not off brings, where it brings anything; all prompts are remembered."""
        numbers: dict[int, int] = {}
        for number, prompt in prompts.items():
            if number != SENT:
                numbers[id(prompt)] = numbers.get(id(prompt), 0) | 1 << number
        as_sent = self._seen.take(prompts[SENT], finished, _EVERY_FORM & ~sum(numbers.values()))
        found = {
            id(prompt): self._seen.take(prompt, finished, numbers[id(prompt)])
            for prompt in {id(prompt): prompt for number, prompt in prompts.items() if number != SENT}.values()
        }
        edits = {form.number: len(form.edits) for form in forms}
        outcomes: list[RuleOutcome] = []
        for number, rule, mode in _told(finished.canonical.modes):
            seen = found[id(prompts[number])] if number in prompts else as_sent
            more = seen[number] - as_sent[SENT]
            more = max(min(-more if mode is RuleMode.APPLY else more, finished.prompt_tokens), -finished.prompt_tokens)
            if more or number in edits:
                outcomes.append(RuleOutcome(rule, mode, edits.get(number, 0), max(more, 0), max(-more, 0)))
        return tuple(outcomes)

    def _prompts(
        self, finished: RequestRecord, forms: Sequence[Form], encoder: PromptEncoder | None
    ) -> dict[int, FormBlocks] | None:
        """The prompt as it was sent, and in every form that differs; None if one of them cannot be told."""
        if forms and encoder is None:
            return None
        prompts = {SENT: self._seen.prompt(finished, finished.parts[0])}
        done: dict[int, FormBlocks] = {}
        for form in forms:
            if form.fields is None:
                return None
            if id(form.fields) not in done:
                assert encoder is not None
                try:
                    parts = encoder.encode(Endpoint(finished.endpoint), form.fields)
                except TokenizerUnavailable:
                    return None
                if len(parts) != 1:
                    return None
                done[id(form.fields)] = self._seen.prompt(finished, parts[0])
            prompts[form.number] = done[id(form.fields)]
        return prompts

    def _counter(self, finished: RequestRecord) -> Callable[[str], int] | None:
        encoder = self._encoders.loaded(finished.model)
        return None if encoder is None else lambda text: len(encoder.encode_text(text)) // TOKEN_BYTES

    def _take_settings(self, terms: CanonOptions) -> None:
        settings = CanonSettings.model_validate_json(terms.settings)
        self._memory.ttl_seconds = settings.memory_ttl_seconds
        self._forms = Forms(settings, self._build(settings), self._memory)


def _told(modes: Sequence[RuleMode]) -> list[tuple[int, str, RuleMode]]:
    """Number, name and mode of all that is told of."""
    rules: list[tuple[int, str, RuleMode]] = [
        (number_of(rule), str(rule), mode) for rule, mode in zip(RULES, modes, strict=False) if mode is not RuleMode.OFF
    ]
    if RuleMode.OBSERVE in modes:
        rules.append((TOGETHER, ALL_RULES, RuleMode.OBSERVE))
    return rules
