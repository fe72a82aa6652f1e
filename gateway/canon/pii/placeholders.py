"""Numbered placeholders, such as ``[email-1]``: the same one for the same value within a conversation.

The numbers follow the order of the values in the request. Later turns repeat the earlier ones in front of what is new,
so they number their values alike, in any process. Numbers are remembered only of a session that the client names, so
that a conversation whose beginning was cut keeps them: without a session, conversations of different users that begin
alike cannot be distinguished. The memory holds hashes of the values, with a random seed, and never the values.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence

import orjson
from xxhash import xxh3_128_digest

from gateway.canon.pii.passages import Passage
from gateway.canon.pii.scanner import Hit
from gateway.core.bounded_cache import BoundedCache

MAX_VALUES = 1000
"""Values that are numbered in a conversation. Further ones get a placeholder without a number."""
MAX_REMEMBERED = 200_000
"""Remembered values of all sessions, about 200 bytes each."""

Value = tuple[str, str]
"""Kind and text of a finding."""
_Hashed = tuple[str, bytes]
"""Kind and hash of the text of a finding."""


def value_of(kind: str, text: str, *, is_json: bool) -> Value:
    """The value that a finding stands for; in JSON without its escapes."""
    if is_json and "\\" in text:
        try:
            return kind, str(orjson.loads(f'"{text}"'))
        except orjson.JSONDecodeError:
            pass
    return kind, text


def distinct_values(findings: Iterable[tuple[Passage, Sequence[Hit]]]) -> list[Value]:
    """The first values of some findings, each once, in the order of the request."""
    values: dict[Value, None] = {}
    for passage, hits in findings:
        for hit in hits:
            text = passage.text[hit.start : hit.start + hit.length]
            values[value_of(hit.kind, text, is_json=passage.is_json)] = None
            if len(values) == MAX_VALUES:
                return list(values)
    return list(values)


class Placeholders:
    """Numbers the values of requests, and remembers the numbers of sessions, with LRU eviction of whole sessions."""

    def __init__(self) -> None:
        # By tenant and hash of the session: the number of each kind and hash of a value.
        self._numbers: BoundedCache[tuple[str, bytes], dict[_Hashed, int]] = BoundedCache(max_weight=MAX_REMEMBERED)
        self._seed = secrets.randbits(64)  # so that no client can construct equal hashes

    def __len__(self) -> int:
        return self._numbers.weight

    def named(self, tenant: str, session: str | None, values: Sequence[Value]) -> Mapping[Value, str]:
        """The placeholders of some values, at most ``MAX_VALUES``.

        Args:
            tenant: The tenant's id.
            session: The session that its client names; None: nothing is remembered.
            values: The values, each once, in the order of the request.
        """
        digests = [(kind, self._digest(text)) for kind, text in values]
        if session is None:
            numbers = _numbered({}, digests)
        else:
            key = (tenant, self._digest(session))
            known = self._numbers.get(key) or {}
            if len(known.keys() | set(digests)) > MAX_VALUES:
                known = {each: known[each] for each in digests if each in known}
            numbers = _numbered(known, digests)
            self._numbers.put(key, numbers, weight=len(numbers))
        return {value: f"[{value[0]}-{numbers[each]}]" for value, each in zip(values, digests, strict=True)}

    def _digest(self, text: str) -> bytes:
        return xxh3_128_digest(text.encode("utf-8", "surrogatepass"), self._seed)


def _numbered(known: Mapping[_Hashed, int], digests: Sequence[_Hashed]) -> dict[_Hashed, int]:
    """The known numbers, and for each further value the lowest one of its kind that is free."""
    numbers = dict(known)
    taken = {(kind, number) for (kind, _), number in known.items()}
    last: dict[str, int] = {}
    for each in digests:
        if each in numbers:
            continue
        kind = each[0]
        number = last.get(kind, 0) + 1
        while (kind, number) in taken:
            number += 1
        numbers[each] = last[kind] = number
    return numbers
