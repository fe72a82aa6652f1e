"""Which earlier request a request is compared with, and how much of it stands in both."""

from gateway.settle.reference.families import Families
from gateway.settle.reference.frame import Frames
from gateway.settle.reference.kept import ChosenBy, Found, Kept
from gateway.settle.reference.overlap import common_tokens, tokens_behind
from gateway.settle.reference.references import References

__all__ = ["ChosenBy", "Families", "Found", "Frames", "Kept", "References", "common_tokens", "tokens_behind"]
