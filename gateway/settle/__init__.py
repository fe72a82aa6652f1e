"""After the answer is out: what was predicted against what was reported."""

from gateway.settle.learn import learn
from gateway.settle.reconcile import confirmed_tokens, settlement
from gateway.settle.replies import replies

__all__ = ["confirmed_tokens", "learn", "replies", "settlement"]
