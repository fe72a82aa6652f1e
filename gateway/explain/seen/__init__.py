"""What was computed before, and what became of it."""

from gateway.explain.seen.loss_causes import Fates
from gateway.explain.seen.seen_messages import Teller
from gateway.explain.seen.seen_prompts import Chains, Memory, Seen

__all__ = ["Chains", "Fates", "Memory", "Seen", "Teller"]
