"""Which earlier request a request is compared with, and how much of it stands in both."""

from gateway.explain.reference.families import Families
from gateway.explain.reference.frame import Frames
from gateway.explain.reference.kept import ChosenBy, KeptRequest, ReferenceMatch
from gateway.explain.reference.overlap import common_tokens, tokens_behind
from gateway.explain.reference.references import References

__all__ = [
    "ChosenBy",
    "Families",
    "Frames",
    "KeptRequest",
    "ReferenceMatch",
    "References",
    "common_tokens",
    "tokens_behind",
]
