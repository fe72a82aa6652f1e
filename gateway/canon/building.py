"""The rules of a configuration, built."""

from gateway.canon.rulebook import Rulebook
from gateway.canon.settings import CanonSettings


def rulebook(settings: CanonSettings) -> Rulebook:
    """All rules, in their order."""
    raise NotImplementedError
