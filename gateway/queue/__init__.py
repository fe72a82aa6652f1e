"""Hold back what no replica or thread has time for, and let it go in a fair order."""

from gateway.queue.lines import Lines, Wish
from gateway.queue.threads import FairThreads

__all__ = ["FairThreads", "Lines", "Wish"]
