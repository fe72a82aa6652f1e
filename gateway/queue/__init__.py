"""Hold back what no replica has time for, and let it go in a fair order."""

from gateway.queue.lines import Lines, Wish

__all__ = ["Lines", "Wish"]
