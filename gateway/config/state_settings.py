"""The setting ``state``: where shared state is kept, in memory or in a Redis, whose URL is parsed here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, SecretStr

_VISIBLE_ASCII = re.compile(r"[!-~]+")
_DATABASE = re.compile(r"(/|/\d{1,5})?")
_SERVICE = re.compile(r"/([A-Za-z0-9._-]+)(/\d{1,5}|/)?")
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_SENTINEL_LOGIN = ("sentinel_username", "sentinel_password")
_DEFAULT_PORT = 6379
_DEFAULT_SENTINEL_PORT = 26379
_EXPECTED = "expected memory, or a URL such as redis://:PASSWORD@redis:6379/0 (rediss:// for TLS)"
_SPELLED = "other characters than letters and digits in a password are written as %40 for @, %23 for #, %2F for /"
_SEVERAL = (
    "several hosts are for redis+sentinel://host1:26379,host2:26379/NAME_OF_THE_MASTER and "
    "redis+cluster://host1:6379,host2:6379"
)


class RedisKind(StrEnum):
    """Kinds of Redis deployments."""

    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


_KINDS = {"": RedisKind.SERVER, "sentinel": RedisKind.SENTINEL, "cluster": RedisKind.CLUSTER}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The parsed URL of a Redis.

    Attributes:
        kind: A single server, sentinels, or a cluster.
        hosts: Names and ports of the server, of the sentinels, or of some cluster nodes.
        username: Of the servers; None for the default one.
        password: Of the servers; None for none.
        database: Its number.
        service: The master's name at the sentinels; empty otherwise.
        sentinel_login: Arguments for the sentinels, where they require a login of their own.
        tls: Whether all connections are encrypted.
        tls_files: Arguments for them.
    """

    kind: RedisKind
    hosts: Sequence[tuple[str, int]]
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    database: int = 0
    service: str = ""
    sentinel_login: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: bool = False
    tls_files: Mapping[str, str] = field(default_factory=dict)


def read_address(url: str) -> RedisAddress:
    """Parse a URL.

    Raises:
        ValueError: it is invalid. The message does not quote it: it may hold a password.
    """
    parts = _split(url)
    scheme, _, kind_name = parts.scheme.partition("+")
    kind = _KINDS.get(kind_name)
    if scheme not in {"redis", "rediss"} or kind is None or parts.scheme.endswith("+"):
        raise ValueError(f"{_EXPECTED}; {_SPELLED}")
    login, _, hosts = parts.netloc.rpartition("@")
    if kind is RedisKind.SERVER and "," in hosts:
        raise ValueError(_SEVERAL)
    username, colon, password = login.partition(":")
    found = _hosts(hosts, _DEFAULT_SENTINEL_PORT if kind is RedisKind.SENTINEL else _DEFAULT_PORT)
    if username and not colon:
        raise ValueError("a password stands behind a colon: redis://:PASSWORD@redis:6379, or redis://USER:PASSWORD@…")
    service, database = _path(kind, parts)
    options = _options(parts, kind, tls=scheme == "rediss")
    return RedisAddress(
        kind,
        found,
        username=unquote(username) or None,
        password=unquote(password) or None,
        database=database,
        service=service,
        sentinel_login={name.removeprefix("sentinel_"): options[name] for name in _SENTINEL_LOGIN if name in options},
        tls=scheme == "rediss",
        tls_files={name: options[name] for name in _TLS_FILES if name in options},
    )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url) if _VISIBLE_ASCII.fullmatch(url) else None
    except ValueError:
        parts = None
    if parts is None or not parts.scheme:
        raise ValueError(f"{_EXPECTED}; {_SPELLED}")
    return parts


def _hosts(hosts: str, default_port: int) -> list[tuple[str, int]]:
    found = []
    for each in hosts.split(","):
        try:
            parts = urlsplit(f"//{each}")
            name, port = parts.hostname, parts.port
        except ValueError:
            name, port = None, None
        if not name or port == 0 or each.endswith(":") or "@" in each:
            raise ValueError(f"{_EXPECTED}; {_SPELLED}")
        found.append((name, port or default_port))
    return found


def _path(kind: RedisKind, parts: SplitResult) -> tuple[str, int]:
    """The master's name and the database's number."""
    if kind is RedisKind.SENTINEL:
        match = _SERVICE.fullmatch(parts.path)
        if match is None or parts.fragment:
            raise ValueError(
                "behind the sentinels comes the master's name, as they know it, and the database's number: "
                f"redis+sentinel://host1:26379,host2:26379/mymaster/0; {_SPELLED}"
            )
        return match[1], int((match[2] or "").strip("/") or 0)
    if parts.fragment or not _DATABASE.fullmatch(parts.path):
        raise ValueError(f"behind the port comes nothing but a database's number, such as /0; {_SPELLED}")
    database = int(parts.path.strip("/") or 0)
    if kind is RedisKind.CLUSTER and database:
        raise ValueError("a cluster has no databases but the first (leave the number off)")
    return "", database


def _options(parts: SplitResult, kind: RedisKind, *, tls: bool) -> dict[str, str]:
    known = (_TLS_FILES if tls else ()) + (_SENTINEL_LOGIN if kind is RedisKind.SENTINEL else ())
    if parts.query and not known:
        raise ValueError("options (?…) are for rediss:// only (leave them off)")
    options = parse_qsl(parts.query, keep_blank_values=True)
    for name, value in options:
        if name not in known:
            # Not quoted completely: it may be a part of a password with a question mark.
            raise ValueError(f"an option that is not known; there is {', '.join(known)}; {_SPELLED}")
        if name in _TLS_FILES and not Path(value).is_file():
            raise ValueError(f"{name}: no such file: {unquote(value)}")
    if parts.query and not options:
        raise ValueError(f"an option that is not known; there is {', '.join(known)}")
    return dict(options)


MEMORY = "memory"
"""The value that means: in this process, and nowhere else."""


def _where(state: SecretStr | None) -> SecretStr | None:
    """The URL; None for the gateway's own memory.

    Raises:
        ValueError: it is neither.
    """
    if state is None or state.get_secret_value() == MEMORY:
        return None
    read_address(state.get_secret_value())
    return state


State = Annotated[SecretStr | None, AfterValidator(_where)]
"""Type of the setting: the URL of a Redis, secret because of its password; None for the gateway's own memory."""
