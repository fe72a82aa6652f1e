"""What was computed before, and what became of it."""

from gateway.explain.seen.seen_messages import SeenPublisher
from gateway.explain.seen.seen_prompts import LossCauses, PromptChains, Seen, SeenPrompts

__all__ = ["LossCauses", "PromptChains", "Seen", "SeenPrompts", "SeenPublisher"]
