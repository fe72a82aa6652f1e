"""What was computed before, and what became of it."""

from gateway.settle.past.fates import Fates
from gateway.settle.past.memory import Chains, Memory, Seen
from gateway.settle.past.told import Teller

__all__ = ["Chains", "Fates", "Memory", "Seen", "Teller"]
