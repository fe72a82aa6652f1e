"""KV events from the engines into the index."""

from gateway.kv_events.feed import FeedReport
from gateway.kv_events.feeds import FeedPlan, KvFeeds

__all__ = ["FeedPlan", "FeedReport", "KvFeeds"]
