"""The lives of prefix spaces: which one a request belongs to, how it is bound at the engine, and when it ends."""

from gateway.epochs.keeper import SpaceKeeper
from gateway.epochs.rules import SpaceRules
from gateway.epochs.selections import template_version
from gateway.epochs.settings import SpacesSettings
from gateway.epochs.shared import SharedSpaces
from gateway.epochs.spaces import PrefixSpaces
from gateway.epochs.store import SpacesFile

__all__ = [
    "PrefixSpaces",
    "SharedSpaces",
    "SpaceKeeper",
    "SpaceRules",
    "SpacesFile",
    "SpacesSettings",
    "template_version",
]
