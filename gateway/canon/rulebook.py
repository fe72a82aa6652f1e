"""All rules of a configuration, in their order."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.canon.edits import Edit, applied
from gateway.canon.rule import Fields, Rule, RuleContext
from gateway.core.canonical import RuleName

_BLOCK_TOKENS = 60
"""Of a context block with one or two values."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """A prompt after some rules.

    Attributes:
        fields: The request's fields; the very object that was given if no rule changed anything.
        edits: What was changed, in order. The places are those at the time of each rule.
        remember: As in ``Detected``, of all rules.
        context_lost: Likewise.
        cut_messages: Likewise.
    """

    fields: Fields
    edits: Sequence[Edit] = ()
    remember: Mapping[bytes, str] = field(default_factory=dict)
    context_lost: bool = False
    cut_messages: int = 0


class Rulebook:
    """Applies rules. Pure, and safe to use from several threads.

    Args:
        rules: All rules, in the order of ``RuleName``.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    def canonical(self, fields: Fields, names: Collection[RuleName], given: RuleContext) -> Canonical:
        """A prompt with some rules applied, one after the other.

        Args:
            fields: The request's fields.
            names: Which rules.
            given: What else they may know.
        """
        if RuleName.DYNAMIC_SUFFIX in names:
            given = replace(given, behind_tokens=_BLOCK_TOKENS)
        edits: list[Edit] = []
        remember: dict[bytes, str] = {}
        lost, cut = False, 0
        for rule in self._rules:
            if rule.name not in names:
                continue
            found = rule.detect(fields, given)
            remember |= found.remember
            lost = lost or found.context_lost
            cut += found.cut_messages
            if found.edits:
                fields = applied(fields, found.edits)
                edits += found.edits
        # In front of a cut, there is nothing left to be put back.
        return Canonical(fields, edits, remember, lost and not cut, cut)
