"""What was explained: added up over time, and kept in detail for the last requests.

``Journal.add`` takes every explanation; ``Journal.answer`` gives what the admin port shows. Memory is bounded whatever
comes in; it holds no text but masked windows.
"""

from gateway.stats.journal import FamiliesShown, Journal
from gateway.stats.stats_limits import JournalLimits, Price

__all__ = ["FamiliesShown", "Journal", "JournalLimits", "Price"]
