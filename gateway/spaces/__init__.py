"""The lives of prefix spaces: which one a request belongs to, how it is bound at the engine, and when it ends."""

from gateway.spaces.epoch_file import SpacesFile
from gateway.spaces.keeper import SpaceKeeper
from gateway.spaces.prefix_spaces import PrefixSpaces
from gateway.spaces.replicated_spaces import SharedSpaces
from gateway.spaces.rules import SpaceRules
from gateway.spaces.selections import template_version

__all__ = [
    "PrefixSpaces",
    "SharedSpaces",
    "SpaceKeeper",
    "SpaceRules",
    "SpacesFile",
    "template_version",
]
