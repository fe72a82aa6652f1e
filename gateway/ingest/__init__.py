"""KV events from the engines into the index."""

from gateway.ingest.feed import FeedReport
from gateway.ingest.feeds import FeedPlan, KvFeeds

__all__ = ["FeedPlan", "FeedReport", "KvFeeds"]
