"""The rule ``dynamic-suffix``: what varies goes behind the last message, and leaves a constant pointer in its place."""

from gateway.canon.rules.dynamic.dynamic_suffix import DynamicSuffix

__all__ = ["DynamicSuffix"]
