"""Prefix spaces and their epochs: which space a request belongs to, its ``cache_salt``, and when its epoch ends.

In: caller, model version and fields of a request; resets, model updates, messages of other gateways. Out: a
``SpaceGrant`` per request and ``SpaceEnd`` events. A ``SpaceEpoch`` lasts from the first request
in a space to its reset or expiry. Start with ``prefix_spaces`` (pure), then ``keeper`` (file, expiry, admin API) and
``replicated_spaces`` (other gateways).
"""

from gateway.spaces.keeper import EpochFile, SpaceKeeper
from gateway.spaces.prefix_spaces import PrefixSpaces
from gateway.spaces.replicated_spaces import ReplicatedSpaces
from gateway.spaces.rules import SpaceRules, template_version

__all__ = [
    "EpochFile",
    "PrefixSpaces",
    "ReplicatedSpaces",
    "SpaceKeeper",
    "SpaceRules",
    "template_version",
]
