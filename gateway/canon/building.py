"""Creates the rules from the settings."""

from gateway.canon.rulebook import Rulebook
from gateway.canon.rules.dynamic import DynamicSuffix
from gateway.canon.rules.history_trim import HistoryTrim
from gateway.canon.rules.json_keys import JsonKeys
from gateway.canon.rules.pattern import OwnPatterns
from gateway.canon.rules.role_order import RoleOrder
from gateway.canon.rules.tool_order import ToolOrder
from gateway.canon.rules.unicode import Unicode
from gateway.canon.rules.whitespace import Whitespace
from gateway.config.canon_settings import CanonSettings


def rulebook(settings: CanonSettings) -> Rulebook:
    """Create all rules, in the order in which they are applied."""
    return Rulebook(
        (
            Unicode(),
            Whitespace(),
            OwnPatterns(settings.patterns),
            RoleOrder(settings.role_order),
            ToolOrder(),
            JsonKeys(),
            HistoryTrim(settings.history_trim),
            DynamicSuffix(settings.dynamic_suffix),
        )
    )
