"""How many files may be open: the limit of the process, and who may open how many of them."""

import contextlib
import math
import resource
from dataclasses import dataclass

_MOST = 2**20
"""Upper bound of the requested limit: some systems allow a thousand times more, and programs iterate over all."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Up to which number of open files a port accepts new connections.

    Clients of the public port may take three quarters of the files, connections to replicas all but the last
    sixteenth: that one is for the admin port, so that probes and operators reach it while clients hold all others.

    Attributes:
        served: Up to this number a new connection is served.
        refused: Up to this number it gets an error; beyond, it is closed.
        connections: How many connections the port may have.
    """

    served: float = math.inf
    refused: float = math.inf
    connections: float = math.inf

    @classmethod
    def of_public_port(cls, files: float) -> "FileLimits":
        """Those of the public port, in a process that may have ``files`` open."""
        return cls(files * 3 // 4, files * 7 // 8)

    @classmethod
    def of_admin_port(cls, files: float) -> "FileLimits":
        """Those of the admin port, in a process that may have ``files`` open."""
        return cls(connections=max(files // 16, 16))


def most_with_replicas(files: float) -> float:
    """Up to which number of open files a process that may have ``files`` connects to replicas."""
    return files * 15 // 16


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
