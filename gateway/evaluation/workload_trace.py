"""Workload traces: requests as lengths and block ids, without text.

The format is that of Mooncake's trace release (https://github.com/kvcache-ai/Mooncake, FAST'25): JSON lines with
``timestamp`` (milliseconds from the start), ``input_length`` and ``output_length`` (tokens), and ``hash_ids``, one id
for each block of the prompt, the incomplete last one included. Equal ids mean equal prompts up to the end of that
block. A block has 512 tokens. Other sizes are written in an additional field of every line, ``block_size``, and the
client of a request, if it is known, in ``session``.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import msgspec

from gateway.evaluation.bad_input import BadInput

DEFAULT_BLOCK_SIZE = 512
"""Tokens per block where a trace does not say it."""

_MAX_BLOCKS = 1_000_000
_MAX_LINE_BYTES = 24 * 1024 * 1024
"""A line with that many blocks."""

_MAX_SECONDS = 10 * 365 * 86_400.0
_SHOWN_CHARS = 60


class TraceRequest(msgspec.Struct, frozen=True, gc=False):
    """One request of a trace.

    Attributes:
        at: Arrival, in seconds from the start of the trace.
        prompt_tokens: Length of the prompt.
        output_tokens: Length of the answer.
        blocks: An id for each block of the prompt, the incomplete last one included; equal ids mean an equal prefix
            up to the end of the block.
        session: The client or conversation, as far as it is known; empty otherwise.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: Sequence[int]
    session: str = ""


class _Line(msgspec.Struct, gc=False, omit_defaults=True):
    """A line of the file."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    block_size: int = DEFAULT_BLOCK_SIZE
    session: str = ""


_decode = msgspec.json.Decoder(_Line).decode
_encode = msgspec.json.Encoder().encode


class TraceReader:
    """Reads the requests of a trace in the order of the file.

    Args:
        source: The file.
        name: Its name, for messages.

    Attributes:
        block_size: Tokens per block, known from the first request on.
        lines: Number of lines read so far, blank ones included.
    """

    def __init__(self, source: BinaryIO, name: str) -> None:
        self._source = source
        self._name = name
        self.block_size = 0
        self.lines = 0

    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests.

        Raises:
            BadInput: A line is no request of a trace, or is out of order; the message names the line.
        """
        latest = -math.inf
        for number, text in enumerate(iter(self._next_line, b""), 1):
            self.lines = number
            if text.isspace():
                continue
            if len(text) > _MAX_LINE_BYTES:
                raise self._bad(number, f"longer than {_MAX_LINE_BYTES:,} bytes: no request of a trace")
            line = self._line(number, text)
            if line.timestamp < latest:
                raise self._bad(number, "`timestamp` is smaller than in an earlier line: sort the file by it")
            latest = line.timestamp
            yield TraceRequest(
                line.timestamp / 1000, line.input_length, line.output_length, line.hash_ids, line.session
            )

    def _next_line(self) -> bytes:
        return self._source.readline(_MAX_LINE_BYTES + 1)

    def _line(self, number: int, text: bytes) -> _Line:
        try:
            line = _decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._bad(
                number,
                f"not a request of a trace ({str(error)[:_SHOWN_CHARS]}): expected JSON lines with `timestamp`, "
                "`input_length`, `output_length` and `hash_ids`",
            ) from None
        self.block_size = self.block_size or line.block_size
        if line.block_size != self.block_size:
            raise self._bad(number, f"`block_size` is {line.block_size}, and {self.block_size} in earlier lines")
        if line.block_size < 1:
            raise self._bad(number, "`block_size` must be at least 1")
        if not 0 <= line.timestamp / 1000 <= _MAX_SECONDS:
            raise self._bad(number, "`timestamp` must be milliseconds from the start of the trace")
        if line.input_length < 0 or line.output_length < 0:
            raise self._bad(number, "`input_length` and `output_length` must not be negative")
        needed = -(-line.input_length // line.block_size)
        if len(line.hash_ids) != needed or needed > _MAX_BLOCKS:
            raise self._bad(
                number,
                f"`hash_ids` has {len(line.hash_ids):,} ids, but {line.input_length:,} tokens are {needed:,} blocks of "
                f"{line.block_size}",
            )
        return line

    def _bad(self, number: int, problem: str) -> BadInput:
        return BadInput(f"{self._name}:{number}: {problem}")


def trace_lines(requests: Iterable[TraceRequest], block_size: int) -> Iterator[bytes]:
    """The lines of a trace file, in the order of the requests, each with its line end."""
    for request in requests:
        line = _Line(
            round(request.at * 1000),
            request.prompt_tokens,
            request.output_tokens,
            list(request.blocks),
            block_size,
            request.session,
        )
        yield _encode(line) + b"\n"
