"""Fill the engines' caches with declared prefixes.

``declared`` says what a prefix is, ``document`` reads a file of them, ``plan`` says what goes where, ``pace`` how fast,
``request`` makes the requests, ``job`` counts, ``runner`` sends, and ``warmer`` is what the rest of the gateway sees.
"""

from gateway.warmup.warmer import Warmer

__all__ = ["Warmer"]
