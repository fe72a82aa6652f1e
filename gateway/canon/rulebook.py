"""The rules in their order, created from the settings, their combined result, and the mode of each for a request."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import msgspec

from gateway.canon.rule import NOTHING, Detected, Edit, Fields, Rule, RuleContext, applied
from gateway.canon.rules.dash_style import DashStyle
from gateway.canon.rules.document_order import DocumentOrder
from gateway.canon.rules.dynamic import DynamicSuffix
from gateway.canon.rules.history_trim import HistoryTrim
from gateway.canon.rules.inline_system import InlineSystem
from gateway.canon.rules.inner_spaces import InnerSpaces
from gateway.canon.rules.json_keys import JsonKeys
from gateway.canon.rules.json_text import JsonText
from gateway.canon.rules.pattern import OwnPatterns
from gateway.canon.rules.role_order import RoleOrder
from gateway.canon.rules.system_order import SystemOrder
from gateway.canon.rules.tool_order import ToolOrder
from gateway.canon.rules.unicode import Unicode
from gateway.canon.rules.whitespace import Whitespace
from gateway.config.canon_settings import CanonSettings
from gateway.core.canonical import OPT_IN, RuleMode, RuleModes, RuleName, default_mode

RULES = tuple(RuleName)

BY_DEFAULT = tuple(rule for rule in RuleName if rule not in OPT_IN)
"""The rules that are tried where no configuration says which."""

Modes = tuple[RuleMode, ...]
"""Mode of every rule, in the order of ``RuleName``."""

TenantModes = tuple[tuple[RuleName, RuleMode], ...]
"""As ``Tenant.canon``."""


class ModeTable(dict[tuple[str, str, TenantModes, str], tuple[Modes, frozenset[RuleName]]]):
    """Modes by model, route, the tenant's own settings and the request's dialect, each with the rules that they apply.

    Args:
        rules: Defaults.
        models: By model id.
        routes: By path.
    """

    def __init__(
        self,
        rules: RuleModes,
        models: Mapping[str, RuleModes],
        routes: Mapping[str, RuleModes],
    ) -> None:
        super().__init__()
        self._rules = rules
        self._models = models
        self._routes = routes

    def __missing__(self, key: tuple[str, str, TenantModes, str]) -> tuple[Modes, frozenset[RuleName]]:
        model, route, tenant, dialect = key
        layers: Sequence[RuleModes] = (
            dict(tenant),
            self._routes.get(route, {}),
            self._models.get(model, {}),
            self._rules,
        )
        modes = tuple(
            next((layer[rule] for layer in layers if rule in layer), default_mode(rule, dialect)) for rule in RULES
        )
        self[key] = modes, rules_in(modes, RuleMode.APPLY)
        return self[key]

    def modes(self, model: str, route: str, tenant: TenantModes) -> Modes:
        """Modes for a chat request or completion; ``tenant``: the tenant's own settings."""
        return self[model, route, tenant, ""][0]


@lru_cache(maxsize=256)
def rules_in(modes: Modes, mode: RuleMode) -> frozenset[RuleName]:
    """The rules that are in a mode."""
    return frozenset(rule for rule, each in zip(RULES, modes, strict=False) if each is mode)


_BLOCK_TOKENS = 60
"""Estimate for a context block with one or two values."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """A prompt after some rules.

    Attributes:
        fields: The request's fields; the same object as before if no rule changed anything.
        edits: The changes, in order. Paths and offsets refer to the prompt that the respective rule got.
        remember: See ``Detected``; of all rules.
        context_lost: See ``Detected``.
        cut_messages: See ``Detected``; sum of all rules.
    """

    fields: Fields
    edits: Sequence[Edit] = ()
    remember: Mapping[bytes, str] = field(default_factory=dict)
    context_lost: bool = False
    cut_messages: int = 0


def reserving(given: RuleContext, names: Collection[RuleName]) -> RuleContext:
    """The context of some rules: one with room for blocks where ``dynamic-suffix`` is among them.

    Who applies the rules one by one must take this for all of them.
    """
    if RuleName.DYNAMIC_SUFFIX not in names:
        return given
    return msgspec.structs.replace(given, behind_tokens=_BLOCK_TOKENS)


class _Step(NamedTuple):
    """A rule's part in a result.

    Attributes:
        name: The rule.
        found: What it found.
        before: The prompt that it got.
        after: The prompt with its edits.
    """

    name: RuleName
    found: Detected
    before: Fields
    after: Fields


class Rulebook:
    """Applies rules. Pure and thread-safe.

    Args:
        rules: All rules, in the order of ``RuleName``.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules

    def canonical(self, fields: Fields, names: Collection[RuleName], given: RuleContext) -> Canonical:
        """A prompt with some rules applied, one after the other.

        Args:
            fields: The request's fields.
            names: The rules to apply.
            given: The rules' input besides the prompt.
        """
        return _result(fields, self._steps(fields, names, reserving(given, names)))

    def tried(
        self, fields: Fields, names: Collection[RuleName], given: RuleContext
    ) -> tuple[Canonical, Mapping[RuleName, Canonical]]:
        """As ``canonical``, and what each rule makes of the prompt alone, if that is a change.

        A prompt that the rules do not change together is not changed by any of them alone.
        """
        steps = list(self._steps(fields, names, reserving(given, names)))
        together = _result(fields, steps)
        alone: dict[RuleName, Canonical] = {}
        for step in steps if together.edits else ():
            # A rule that got the prompt itself has found what it finds alone, but a cut depends on the reserved room.
            is_same = step.before is fields and not step.found.cut_messages
            found = _result(fields, [step]) if is_same else self.canonical(fields, (step.name,), given)
            if found.edits:
                alone[step.name] = found
        return together, alone

    def _steps(self, fields: Fields, names: Collection[RuleName], given: RuleContext) -> Iterator[_Step]:
        for rule in self._rules:
            if rule.name in names:
                found = rule.detect(fields, given)
                step = _Step(rule.name, found, fields, applied(fields, found.edits) if found.edits else fields)
                fields = step.after
                yield step


def _result(fields: Fields, steps: Iterable[_Step]) -> Canonical:
    """The result of some steps, which begin with a prompt."""
    edits: list[Edit] = []
    remember: dict[bytes, str] = {}
    lost, cut = False, 0
    for step in steps:
        fields, found = step.after, step.found
        if found is NOTHING:
            continue
        edits += found.edits
        remember |= found.remember
        lost = lost or found.context_lost
        cut += found.cut_messages
    # After a cut, the lost blocks belong to removed messages.
    return Canonical(fields, edits, remember, lost and not cut, cut)


def rulebook(settings: CanonSettings) -> Rulebook:
    """Create all rules, in the order in which they are applied."""
    return Rulebook(
        (
            Unicode(),
            Whitespace(),
            InnerSpaces(),
            DashStyle(),
            JsonText(),
            OwnPatterns(settings.patterns),
            DocumentOrder(settings.document_order),
            SystemOrder(settings.role_order),
            RoleOrder(settings.role_order),
            InlineSystem(),
            ToolOrder(),
            JsonKeys(),
            HistoryTrim(settings.history_trim),
            DynamicSuffix(settings.dynamic_suffix),
        )
    )
