"""Where a replica listens."""

import ssl
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Origin:
    """A replica's base URL, taken apart once.

    Attributes:
        host: Name or address to connect to.
        port: Port to connect to.
        tls: Whether the connection is encrypted; certificates are checked against the system's.
        path: Prefix of every path, without a trailing slash.
        authority: Value of the ``host`` header.
    """

    host: str
    port: int
    tls: bool
    path: str
    authority: str

    @classmethod
    def parse(cls, url: str) -> "Origin":
        """Take apart an http or https URL."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        return cls(
            host=parts.hostname or "",
            port=parts.port or (443 if tls else 80),
            tls=tls,
            path=parts.path.rstrip("/"),
            authority=parts.netloc.rpartition("@")[2],
        )

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """What asyncio wants for an encrypted connection."""
        return _default_context() if self.tls else None


@cache
def _default_context() -> ssl.SSLContext:
    return ssl.create_default_context()
