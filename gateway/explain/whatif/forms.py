"""The forms of a prompt: as it was sent, with rules that are only observed, and without rules that are applied.

An observed rule comes behind those that are applied, on the request as it was sent: what those did is known, and need
not be done again by somebody who may remember less of the conversation. For a form without an applied rule there is
nothing but to begin with what the client asked.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.canon.context_memory import ContextMemory
from gateway.canon.hints import hinted
from gateway.canon.rule import Edit, Fields, RuleContext
from gateway.canon.rulebook import Canonical, Rulebook
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import ALL_RULES, RuleMode, RuleName
from gateway.core.explanation import RequestRecord
from gateway.core.ids import ModelId, RequestId
from gateway.core.request import ChatRequest, Endpoint

RULES = tuple(RuleName)
SENT = 0
"""Number of the form as it was sent."""
TOGETHER = len(RULES) + 1
"""Number of the form with all observed rules."""
FORMS = TOGETHER + 1
"""How many forms there may be. That of a rule has the rule's number, from 1."""

_STRIP = "strip"


@dataclass(frozen=True, slots=True)
class Form:
    """A prompt as it would have been, had one thing been otherwise.

    Attributes:
        number: Of the form.
        rule: Of which rule it tells, or ``ALL_RULES``.
        mode: The rule's.
        edits: What that rule changes.
        fields: The request; None if it is not known what it would have been.
    """

    number: int
    rule: str
    mode: RuleMode
    edits: Sequence[Edit]
    fields: Fields | None


class Forms:
    """Tries rules on requests.

    Args:
        settings: Their settings.
        rulebook: The rules.
        memory: The context blocks of conversations. One for all forms: what a block's key stands for says which form
            it belongs to.
    """

    def __init__(self, settings: CanonSettings, rulebook: Rulebook, memory: ContextMemory) -> None:
        self._settings = settings
        self._rulebook = rulebook
        self._memory = memory
        self._strips = _STRIP in (settings.prompt_cache_key, settings.cache_control, settings.billing_header)

    def of(self, finished: RequestRecord, sent: Fields, count_tokens: Callable[[str], int] | None) -> list[Form]:
        """The forms that differ from what was sent.

        Args:
            finished: The request.
            sent: It, as it was sent on.
            count_tokens: Counts a text's tokens; None if nobody can.
        """
        given = self._given(finished, count_tokens)
        modes = finished.canonical.modes
        applied = frozenset(rule for rule, mode in zip(RULES, modes, strict=False) if mode is RuleMode.APPLY)
        forms: list[Form] = []
        if applied and finished.canonical.asked:
            forms += self._without(finished, sent, given, applied)
        return forms + self._with(sent, given, modes)

    def _with(self, sent: Fields, given: RuleContext, modes: Sequence[RuleMode]) -> list[Form]:
        """With each of the observed rules, and with all of them."""
        forms: list[Form] = []
        observed = [rule for rule, mode in zip(RULES, modes, strict=False) if mode is RuleMode.OBSERVE]
        for rule in observed:
            found = self._canonical(sent, (rule,), given)
            if found.edits:
                forms.append(Form(number_of(rule), rule, RuleMode.OBSERVE, found.edits, found.fields))
        if len(forms) > 1:
            found = self._canonical(sent, observed, given)
            forms.append(Form(TOGETHER, ALL_RULES, RuleMode.OBSERVE, found.edits, found.fields))
        elif forms:
            forms.append(replace(forms[0], number=TOGETHER, rule=ALL_RULES))
        return forms

    def _without(
        self, finished: RequestRecord, sent: Fields, given: RuleContext, applied: Collection[RuleName]
    ) -> list[Form]:
        """Without each of the applied rules that changed something."""
        asked = self._asked(finished)
        if asked is None:
            return []
        found = self._canonical(asked, applied, given)
        forms: list[Form] = []
        for rule in RULES:
            edits = [edit for edit in found.edits if edit.rule is rule]
            if not edits:
                continue
            if rule is RuleName.HISTORY_TRIM:
                # Without it the engine would have refused the request: there is nothing else to compare with.
                forms.append(Form(number_of(rule), rule, RuleMode.APPLY, edits, sent))
                continue
            without = self._canonical(asked, [each for each in applied if each is not rule], given)
            # What this process has forgotten of the conversation, the gateway may not have.
            known = finished.canonical.context_lost or not without.context_lost
            forms.append(Form(number_of(rule), rule, RuleMode.APPLY, edits, without.fields if known else None))
        return forms

    def _asked(self, finished: RequestRecord) -> Fields | None:
        """What the client asked for, without the hints that are taken out of every request."""
        body = finished.canonical.asked
        asked = parsed(body)
        if asked is None or not self._strips:
            return asked
        request = ChatRequest(
            Endpoint(finished.endpoint), b"", body, asked, (), ModelId(finished.model), stream=False,
            usage_wanted=False, request_id=RequestId(finished.request_id), session=None, received_at=0.0,
        )  # fmt: skip
        return hinted(request, self._settings).request.fields

    def _canonical(self, fields: Fields, names: Collection[RuleName], given: RuleContext) -> Canonical:
        if not names:
            return Canonical(fields)
        found = self._rulebook.canonical(fields, names, given)
        for key, block in found.remember.items():
            self._memory.put(key, block, given.now)
        return found

    def _given(self, finished: RequestRecord, count_tokens: Callable[[str], int] | None) -> RuleContext:
        return RuleContext(
            now=finished.at,
            endpoint=Endpoint(finished.endpoint),
            owner=finished.canonical.owner,
            recall=lambda key: self._memory.get(key, finished.at),
            count_tokens=count_tokens,
            context_limit=finished.where.context_limit,
        )


def number_of(rule: RuleName) -> int:
    """Number of a rule's form."""
    return RULES.index(rule) + 1


def parsed(body: bytes) -> Mapping[str, Any] | None:
    """A body's fields; None if it cannot be read."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            fields = json.loads(body)  # takes NaN and numbers beyond a double, as engines do
        except (ValueError, RecursionError):
            return None
    return fields if isinstance(fields, dict) else None
