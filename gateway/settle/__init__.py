"""After the answer is out: what was predicted against what was reported."""

from gateway.settle.learn import learn
from gateway.settle.reconcile import bypasses_cache, confirmed_tokens, settlement
from gateway.settle.replies import replies
from gateway.settle.source import client_family

__all__ = ["bypasses_cache", "client_family", "confirmed_tokens", "learn", "replies", "settlement"]
