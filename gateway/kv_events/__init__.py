"""Follows the KV events of every replica and applies them to the index.

In: ZeroMQ event streams, replicas' facts and restarts. Out: calls of ``EventIndex``, a report per feed. Start with
``feeds`` (all replicas), then ``feed`` (one target) and ``order`` (sequence numbers, gaps and replays, without I/O).
"""

from gateway.kv_events.feed_report import FeedReport
from gateway.kv_events.feeds import FeedPlan, KvFeeds

__all__ = ["FeedPlan", "FeedReport", "KvFeeds"]
