"""Mode of each rule for a request: the most specific setting applies (tenant, route, model, default)."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from gateway.core.canonical import RuleMode, RuleModes, RuleName

RULES = tuple(RuleName)

Modes = tuple[RuleMode, ...]
"""Mode of every rule, in the order of ``RuleName``."""

TenantModes = tuple[tuple[RuleName, RuleMode], ...]
"""As ``Tenant.canon``."""

ALL_OFF: Modes = (RuleMode.OFF,) * len(RULES)


class ModeTable:
    """Modes by model and route.

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
        self._rules = rules
        self._models = models
        self._routes = routes
        self._known: dict[tuple[str, str, TenantModes], Modes] = {}

    def modes(self, model: str, route: str, tenant: TenantModes) -> Modes:
        """Modes for a request; ``tenant``: the tenant's own settings."""
        key = (model, route, tenant)
        known = self._known.get(key)
        if known is None:
            layers: Sequence[RuleModes] = (
                dict(tenant),
                self._routes.get(route, {}),
                self._models.get(model, {}),
                self._rules,
            )
            known = self._known[key] = tuple(
                next((layer[rule] for layer in layers if rule in layer), RuleMode.OBSERVE) for rule in RULES
            )
        return known


@lru_cache(maxsize=256)
def rules_in(modes: Modes, mode: RuleMode) -> frozenset[RuleName]:
    """The rules that are in a mode."""
    return frozenset(rule for rule, each in zip(RULES, modes, strict=False) if each is mode)
