"""API keys and admin tokens: generation, hashing, and lookup without timing leaks.

A key is 256 random bits, so one SHA-256 is the right hash for it: it cannot be guessed, so a salt or a slow hash would
protect nothing. The configuration holds hashes only, so reading it gives no access.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Generic, TypeVar

T = TypeVar("T")

_PREFIX = "pgw"
_LIKE_A_KEY = re.compile(r"(pgw(?:_admin)?)_[A-Za-z0-9_-]{20,}")
_FOREIGN = (
    r"(?<![A-Za-z0-9])(?:sk[-_]|gsk_|hf_|xai-|nvapi-|gh[opsur]_|github_pat_|glpat-|xox[a-z]-"
    r"|A[KS]IA(?=[A-Z0-9]{12})|AIza|eyJ)"
)
"""How keys of other services begin."""
_ANY_KEY = re.compile(
    rf"(pgw(?:_admin)?_(?=[\w-]{{20}})|{_FOREIGN}(?=(?:[^\W_]{{1,16}}[_-]+){{0,4}}[^\W_]{{16}}))[\w-]+(?:\.[\w-]+)*",
    re.ASCII,
)
_KEY_AS_ID = re.compile(rf"(?<![-./_]){_FOREIGN}|(?<![A-Za-z0-9])(?i:bearer)[^A-Za-z0-9]|pgw[-_][A-Za-z0-9_-]{{20}}")
_INVISIBLE = re.compile(r"[^\x21-\x7e]")
_SHOWN_CHARS = 200
_SCANNED_CHARS = 1024
"""Characters of a text that are searched for keys before it is cut to ``_SHOWN_CHARS``."""
_RANDOM_BYTES = 32
_SCHEME = "sha256:"
_SHORT_DIGITS = 8
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_BEARER = re.compile(rb"(?i:bearer) +([!-~]+)")
_LONGEST_KEY = 512
"""Characters beyond which nothing can be a key: ten times what ``new_key`` makes. Longer ones are not even hashed."""

_DAY = timedelta(days=1).total_seconds()


def new_key(prefix: str = _PREFIX) -> str:
    """A new key: the prefix, by which scanners and people recognize a lost key, and 256 random bits in base64url."""
    return f"{prefix}_{secrets.token_urlsafe(_RANDOM_BYTES)}"


def hash_key(key: str) -> str:
    """The hash of a key, as written in the configuration: ``sha256:`` and 64 hex digits."""
    return _SCHEME + hashlib.sha256(key.encode()).hexdigest()


def parse_hash(text: str) -> bytes:
    """Parse the result of ``hash_key`` into 32 bytes.

    Raises:
        ValueError: The text has another form. The message does not quote it, because it may be the key itself.
    """
    match = _HASH.fullmatch(text)
    if match is None:
        raise ValueError(
            "expected sha256: and 64 hex digits; only hashes stand in the configuration "
            "(make one with `prefix-gateway key`)"
        )
    return bytes.fromhex(match[1])


def short_id(digest: bytes) -> str:
    """A name for a key without one: the beginning of its hash."""
    return _SCHEME + digest.hex()[:_SHORT_DIGITS]


def parse_expiry(text: str) -> float:
    """The expiry time of a key, in Unix seconds.

    Args:
        text: An ISO date, which is the last day in UTC on which the key is valid; or an ISO date and time, in UTC if it
            names no zone.

    Raises:
        ValueError: It is neither.
    """
    try:
        day = date.fromisoformat(text)
    except ValueError:
        pass
    else:
        return datetime.combine(day, time(), UTC).timestamp() + _DAY
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "expected a date such as 2027-01-31, the last day (UTC) on which it is valid, "
            "or a time such as 2027-01-31T12:00:00Z"
        ) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def bearer(value: bytes | None) -> str | None:
    """The key in an ``authorization`` header; None if it is missing or is not ``Bearer`` and one visible token."""
    match = None if value is None else _BEARER.fullmatch(value.strip(b" \t"))
    return None if match is None else match[1].decode("ascii")


def redacted(text: str) -> str:
    """A client's text for a log: what looks like a key, of this gateway or another service, is cut to its prefix.

    Clients send keys in wrong places: as a session, in a path.
    """
    return _ANY_KEY.sub(r"\1…", text)


def shown_path(path: str) -> str:
    """A request's path for a log or an error message: shortened, in visible ASCII, without keys.

    Args:
        path: As the client sent it, decoded; it may hold line ends and terminal sequences.
    """
    safe = _INVISIBLE.sub("?", redacted(path[:_SCANNED_CHARS]))
    return safe if len(safe) <= _SHOWN_CHARS else safe[:_SHOWN_CHARS] + "…"


def looks_like_key(text: str) -> bool:
    """Whether a text seems to contain a key of this gateway. Keys of other services may be names of tenants."""
    return _PREFIX in text and _LIKE_A_KEY.search(text) is not None


def may_be_key(request_id: str) -> bool:
    """Whether a request id may hold a key, of this gateway or another service; also short ones: ids are replaceable."""
    return (_KEY_AS_ID.search(request_id) or _ANY_KEY.search(request_id)) is not None


class KeyRing(Generic[T]):
    """Maps a presented key to its entry. Immutable.

    Comparing every key would cost time in proportion to their number. Looking the hash up in a dictionary would leak it
    by timing, because a dictionary compares bytes until they differ, and clients can compute hashes. So the dictionary
    is keyed by a MAC of the hash under a random secret of this process (keyed BLAKE2b, which is faster than HMAC),
    which clients can neither know nor choose; the hash itself is then compared in constant time.

    Args:
        entries: The entry of each key, by the hash that ``parse_hash`` returns.
    """

    def __init__(self, entries: Mapping[bytes, T]) -> None:
        self._secret = secrets.token_bytes(_RANDOM_BYTES)
        self._entries = {self._blinded(digest): (digest, entry) for digest, entry in entries.items()}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, presented: str) -> T | None:
        """The entry of a key; None if the key is unknown, with any text."""
        if len(presented) > _LONGEST_KEY or not presented.isascii():
            return None
        digest = hashlib.sha256(presented.encode("ascii")).digest()
        found = self._entries.get(self._blinded(digest))
        if found is None or not hmac.compare_digest(digest, found[0]):
            return None
        return found[1]

    def _blinded(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=_RANDOM_BYTES).digest()
