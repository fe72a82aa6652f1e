"""The lives of prefix spaces: which one a request belongs to, how it is bound at the engine, and when it ends."""

from gateway.spaces.epoch_file import EpochFile
from gateway.spaces.keeper import SpaceKeeper
from gateway.spaces.prefix_spaces import PrefixSpaces
from gateway.spaces.replicated_spaces import ReplicatedSpaces
from gateway.spaces.rules import SpaceRules
from gateway.spaces.selections import template_version

__all__ = [
    "EpochFile",
    "PrefixSpaces",
    "ReplicatedSpaces",
    "SpaceKeeper",
    "SpaceRules",
    "template_version",
]
