"""Chooses the earlier request that a request is compared with, and measures their overlap.

In: a ``KeptRequest`` with body and token ids. Out: a ``ReferenceMatch`` (``References.find``), tokens in common, and
the differences between client families (``Families``). Start with ``references``; ``frame`` defines when two prompts
belong to one application, ``thread`` when two belong to one conversation.
"""

from gateway.explain.reference.families import Families
from gateway.explain.reference.frame import Frames
from gateway.explain.reference.kept_request import ChosenBy, KeptRequest, ReferenceMatch
from gateway.explain.reference.overlap import common_tokens, tokens_behind
from gateway.explain.reference.references import References
from gateway.explain.reference.thread import REPLIES

__all__ = [
    "REPLIES",
    "ChosenBy",
    "Families",
    "Frames",
    "KeptRequest",
    "ReferenceMatch",
    "References",
    "common_tokens",
    "tokens_behind",
]
