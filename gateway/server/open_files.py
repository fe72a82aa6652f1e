"""How many files may be open: the limit of the process, and the connections that are accepted below it."""

import contextlib
import math
import resource
from dataclasses import dataclass

_MOST = 2**20
"""Upper bound of the requested limit: some systems allow a thousand times more, and programs iterate over all."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Numbers of open files up to which new connections are accepted. The rest is reserved for connections to replicas.

    Attributes:
        served: Up to this number a new connection is served.
        refused: Up to this number it gets an error; beyond, it is closed.
    """

    served: float
    refused: float

    @classmethod
    def of(cls, open_files: float) -> "FileLimits":
        """The limits of a process that may have this number of open files."""
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
        with contextlib.suppress(ValueError, OSError):  # macOS has another limit, which it does not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_files() -> float:
    """This process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft
