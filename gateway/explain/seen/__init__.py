"""Remembers which blocks were computed before, where, and why they may be lost.

In: records of requests, cache events, and messages of other gateways. Out: for a prompt, the blocks computed before in
its prefix space and elsewhere, with a reason per block (``Seen``). Start with ``seen_prompts``; ``block_tree`` is the
memory behind it, ``seen_messages`` the exchange between gateways.
"""

from gateway.explain.seen.prompt_hashes import PromptHashes, space_name
from gateway.explain.seen.seen_messages import SeenPublisher
from gateway.explain.seen.seen_prompts import LossCauses, Lost, Seen, SeenPrompts

__all__ = ["LossCauses", "Lost", "PromptHashes", "Seen", "SeenPrompts", "SeenPublisher", "space_name"]
