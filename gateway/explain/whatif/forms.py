"""Builds the forms of a prompt: as sent, with observed rules, and without applied rules.

An observed rule is tried on the request as sent, after the applied rules: this process may remember less of the
conversation than the gateway, so it does not repeat them. A form without an applied rule is built from the client's
request.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gateway.canon.context_memory import ContextMemory
from gateway.canon.hints import without_hints
from gateway.canon.rule import Edit, Fields, RuleContext
from gateway.canon.rulebook import Canonical, Rulebook
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import ALL_RULES, RuleMode, RuleName
from gateway.core.explanation import RequestRecord
from gateway.core.ids import ModelId, RequestId
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import ChatRequest, Endpoint
from gateway.explain.bodies import parsed

if TYPE_CHECKING:  # it is loaded on first use
    from gateway.tokenize.local import LocalEncoder

RULES = tuple(RuleName)

SENT = 0
"""Number of the form that was sent."""

TOGETHER = len(RULES) + 1
"""Number of the form with all observed rules."""

FORMS = TOGETHER + 1
"""Number of possible forms. A rule's form has the rule's number, from 1."""

EVERY_FORM = (1 << FORMS) - 1
"""Mask of all forms."""

_STRIP = "strip"


@dataclass(frozen=True, slots=True)
class Form:
    """A variant of a prompt.

    Attributes:
        number: Number of the form.
        rule: The rule that it adds or omits, or ``ALL_RULES``.
        mode: Mode of that rule.
        edits: Edits of that rule.
        fields: Body of the variant; None if it cannot be determined.
    """

    number: int
    rule: str
    mode: RuleMode
    edits: Sequence[Edit]
    fields: Fields | None


class Forms:
    """Builds forms by applying rules to requests.

    Args:
        settings: Settings of the rules.
        rulebook: The rules.
        memory: Context blocks of conversations, shared by all forms: the keys of the blocks depend on the form.
    """

    def __init__(self, settings: CanonSettings, rulebook: Rulebook, memory: ContextMemory) -> None:
        self._settings = settings
        self._rulebook = rulebook
        self._memory = memory
        self._strips = _STRIP in (settings.prompt_cache_key, settings.cache_control, settings.billing_header)

    def of(self, record: RequestRecord, sent: Fields, encoder: "LocalEncoder | None") -> list[Form]:
        """The forms that differ from the request as sent.

        Args:
            record: The request.
            sent: Its body as sent.
            encoder: The model's tokenizer; None if none is available.
        """
        given = self._given(record, encoder)
        modes = record.canonical.modes
        forms: list[Form] = []
        if record.canonical.asked and (applied := _rules_in(modes, RuleMode.APPLY)):
            forms += self._without(record, sent, given, applied)
        return forms + self._with(sent, given, _rules_in(modes, RuleMode.OBSERVE))

    def _with(self, sent: Fields, given: RuleContext, observed: Sequence[RuleName]) -> list[Form]:
        """Forms with each of the observed rules, and with all of them."""
        together, alone = self._rulebook.tried(sent, observed, given)
        for found in alone.values():
            self._remember(found, given)
        forms = [
            Form(number_of(rule), rule, RuleMode.OBSERVE, found.edits, found.fields) for rule, found in alone.items()
        ]
        if len(forms) > 1:
            if any(found.remember for found in alone.values()):
                # A rule may recall what it has remembered just now.
                together = self._rulebook.canonical(sent, observed, given)
            self._remember(together, given)
            forms.append(Form(TOGETHER, ALL_RULES, RuleMode.OBSERVE, together.edits, together.fields))
        elif forms:
            forms.append(replace(forms[0], number=TOGETHER, rule=ALL_RULES))
        if not together.edits:
            self._remember(together, given)
        return forms

    def _without(
        self, record: RequestRecord, sent: Fields, given: RuleContext, applied: Collection[RuleName]
    ) -> list[Form]:
        """Forms without each of the applied rules that made edits."""
        asked = self._asked(record)
        if asked is None:
            return []
        found = self._canonical(asked, applied, given)
        forms: list[Form] = []
        for rule in RULES:
            edits = [edit for edit in found.edits if edit.rule is rule]
            if not edits:
                continue
            if rule is RuleName.HISTORY_TRIM:
                # Without this rule the engine would have rejected the request: there is no other form to compare.
                forms.append(Form(number_of(rule), rule, RuleMode.APPLY, edits, sent))
                continue
            without = self._canonical(asked, [each for each in applied if each is not rule], given)
            # This process may have lost context blocks that the gateway still had.
            known = record.canonical.context_lost or not without.context_lost
            forms.append(Form(number_of(rule), rule, RuleMode.APPLY, edits, without.fields if known else None))
        return forms

    def _asked(self, record: RequestRecord) -> Fields | None:
        """The client's request, without the hints that are removed from every request."""
        body = record.canonical.asked
        asked = parsed(body)
        if asked is None or not self._strips:
            return asked
        request = ChatRequest(
            Endpoint(record.endpoint), b"", body, asked, (), ModelId(record.model), stream=False,
            usage_wanted=False, request_id=RequestId(record.request_id), session=None, received_at=0.0,
        )  # fmt: skip
        return without_hints(request, self._settings).fields

    def _canonical(self, fields: Fields, names: Collection[RuleName], given: RuleContext) -> Canonical:
        if not names:
            return Canonical(fields)
        found = self._rulebook.canonical(fields, names, given)
        self._remember(found, given)
        return found

    def _remember(self, found: Canonical, given: RuleContext) -> None:
        for key, block in found.remember.items():
            self._memory.put(key, block, given.now)

    def _given(self, record: RequestRecord, encoder: "LocalEncoder | None") -> RuleContext:
        return RuleContext(
            now=record.at,
            endpoint=Endpoint(record.endpoint),
            owner=record.canonical.owner,
            recall=lambda key: self._memory.get(key, record.at),
            count_tokens=None if encoder is None else lambda text: len(encoder.encode_text(text)) // TOKEN_BYTES,
            context_limit=record.where.context_limit,
            later_system="joined" if encoder is None else encoder.later_system,
        )


def _rules_in(modes: Sequence[RuleMode], wanted: RuleMode) -> list[RuleName]:
    return [rule for rule, mode in zip(RULES, modes, strict=False) if mode is wanted]


def number_of(rule: RuleName) -> int:
    """Number of a rule's form."""
    return RULES.index(rule) + 1
