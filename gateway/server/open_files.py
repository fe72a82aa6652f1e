"""How many files, and so connections, a process may have open, and how many of them are for clients."""

import contextlib
import math
import resource
from dataclasses import dataclass

_MOST = 2**20
"""What is asked for at most: some systems allow a thousand times that, and programs walk through all that may be."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Up to how many open files a new connection is served. What is left is for the connections to replicas.

    Attributes:
        served: Up to so many it is served.
        refused: Up to so many it is told that there is no room; beyond that it is cut off.
    """

    served: float
    refused: float

    @classmethod
    def of(cls, open_files: float) -> "FileLimits":
        """That of a process that may have so many files open."""
        return cls(open_files * 3 // 4, open_files * 7 // 8)

    @classmethod
    def endless(cls) -> "FileLimits":
        """For any number."""
        return cls(math.inf, math.inf)


def raise_open_files() -> None:
    """Let this process, and those that it starts from now on, have as many files open as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):  # macOS has another limit, which it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files() -> float:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft
