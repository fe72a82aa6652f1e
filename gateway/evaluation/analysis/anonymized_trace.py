"""Writes requests as a workload trace: lengths and block ids, without any text.

The ids cannot be traced back to texts: blocks are hashed with a key that is thrown away, and the hashes are replaced by
numbers in the order of their first use. Sessions are numbered in the same way.
"""

import secrets
from collections.abc import Iterator
from typing import BinaryIO

from gateway.core.explanation import RequestRecord
from gateway.core.ids import ModelId
from gateway.core.prompt import TOKEN_BYTES
from gateway.evaluation.workload_trace import TraceRequest, trace_lines
from gateway.explain.seen import space_name
from gateway.tokenize.block_hashes import ChainHasher

TRACE_BLOCK_SIZE = 32
"""Tokens per block of a trace: rounding to it costs a prompt of a thousand tokens 2 % at most, for half of the ids that
vLLM's 16 would take."""

_NUMBERED = 1_000_000
"""Hashes in each of two generations: those that were not used since the last million others get a new number."""

_BUFFERED = 256


class Numbering:
    """Numbers for values, in the order of their first use; bounded: what was not used for long gets a new one."""

    def __init__(self) -> None:
        self._young: dict[object, int] = {}
        self._old: dict[object, int] = {}
        self._next = 0

    def of(self, value: object) -> int:
        """The number of a value."""
        number = self._young.get(value)
        if number is None:
            number = self._old.pop(value, None)
            if number is None:
                number, self._next = self._next, self._next + 1
            if len(self._young) >= _NUMBERED:
                self._old, self._young = self._young, {}
            self._young[value] = number
        return number


class AnonymizedTrace:
    """Writes the requests of a log to a trace.

    Args:
        target: The file.
        block_size: Tokens per block.

    Attributes:
        requests: Requests written.
        blocks: Their blocks.
    """

    def __init__(self, target: BinaryIO, block_size: int = TRACE_BLOCK_SIZE) -> None:
        self._target = target
        self._block_size = block_size
        self._hasher = ChainHasher()
        self._key = secrets.token_hex(16)
        self._blocks = Numbering()
        self._sessions = Numbering()
        self._began_at: float | None = None
        self._latest = 0.0
        self._waiting: list[TraceRequest] = []
        self.requests = 0
        self.blocks = 0

    def add(self, record: RequestRecord) -> None:
        """Write a request; one with several prompts becomes several."""
        if self._began_at is None:
            self._began_at = record.at
        self._latest = max(self._latest, record.at - self._began_at)
        root = self._hasher.root(ModelId(record.model), space_name(record.where), self._key)
        session = f"s{self._sessions.of(record.session)}" if record.session else ""
        for part in record.parts:
            ids = [self._blocks.of(each) for each in self._hashes(root, part)]
            output = max(record.completion_tokens or 0, 0)
            self._waiting.append(TraceRequest(self._latest, len(part) // TOKEN_BYTES, output, ids, session))
            self.requests += 1
            self.blocks += len(ids)
        if len(self._waiting) >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self._target.writelines(trace_lines(self._waiting, self._block_size))
        self._waiting.clear()

    def _hashes(self, root: int, part: bytes) -> Iterator[object]:
        """The hashes of all blocks, the incomplete last one included."""
        chain = self._hasher.chain(root, part, self._block_size)
        yield from chain.hashes
        rest = part[len(chain.hashes) * self._block_size * TOKEN_BYTES :]
        if rest:
            last = chain.hashes[-1] if chain.hashes else root
            yield from self._hasher.extend(last, rest, len(rest) // TOKEN_BYTES, None)
