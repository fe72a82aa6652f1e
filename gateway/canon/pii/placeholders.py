"""Numbered placeholders, such as ``[email-1]``: the same one for the same value within a conversation.

The numbers follow the order of the values in the conversation, and are remembered, so that a conversation whose
beginning was cut keeps them. The memory holds hashes of the values, with a random seed, and never the values.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence

import orjson
from xxhash import xxh3_128_digest

from gateway.canon.pii.counting import conversation_of
from gateway.canon.pii.passages import Passage, beginnings
from gateway.canon.pii.scanner import Hit
from gateway.core.bounded_cache import BoundedCache
from gateway.core.request import ChatRequest

MAX_VALUES = 1000
"""Values that are numbered in a conversation. Further ones get a placeholder without a number."""
MAX_REMEMBERED = 200_000
"""Remembered values of all conversations, about 200 bytes each."""

Value = tuple[str, str]
"""Kind and text of a finding."""


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
    """Numbers the values of conversations, in memory, with LRU eviction of whole conversations."""

    def __init__(self) -> None:
        # By tenant and conversation: the number of each kind and hash of a value.
        self._numbers: BoundedCache[tuple[str, int], dict[tuple[str, bytes], int]] = BoundedCache(
            max_weight=MAX_REMEMBERED
        )
        self._seed = secrets.randbits(64)  # so that no client can construct equal hashes

    def __len__(self) -> int:
        return self._numbers.weight

    def conversation(self, request: ChatRequest) -> int:
        """Identity of a request's conversation: its session, or else everything up to its first user message."""
        whole = [part for beginning in beginnings(request) for part in beginning]
        return conversation_of(whole, request.session, seed=self._seed).id

    def named(self, tenant: str, conversation: int, values: Sequence[Value]) -> Mapping[Value, str]:
        """The placeholders of some values, at most ``MAX_VALUES``.

        Args:
            tenant: The tenant's id.
            conversation: Its conversation's identity.
            values: The values, in the order of the request.
        """
        key = (tenant, conversation)
        numbers = dict(self._numbers.get(key) or {})
        digests = [(kind, self._digest(text)) for kind, text in values]
        if len(numbers.keys() | set(digests)) > MAX_VALUES:
            # Many conversations that begin alike and name no session: numbered anew.
            numbers = {}
        counts: dict[str, int] = {}
        for kind, _ in numbers:
            counts[kind] = counts.get(kind, 0) + 1
        for each in digests:
            if each not in numbers:
                numbers[each] = counts[each[0]] = counts.get(each[0], 0) + 1
        self._numbers.put(key, numbers, weight=len(numbers))
        return {value: f"[{value[0]}-{numbers[each]}]" for value, each in zip(values, digests, strict=True)}

    def _digest(self, text: str) -> bytes:
        return xxh3_128_digest(text.encode("utf-8", "surrogatepass"), self._seed)
