"""Token ids of kept prompts, in pieces that prompts with a common beginning share, and in fewer bits than 32 per id.

A piece holds the low 16 bits of each of its ids, and behind them one bit of each id per higher bit, from the lowest on,
as far as they are not 0: vocabularies have at most 18 bits, or a few more.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.core.prompt import TOKEN_BYTES

PIECE_TOKENS = 512

_LOW_BYTES = 2
_LOW_BITS = 16
_BYTE_BITS = 8


class PackedIds(NamedTuple):
    """The token ids of a prompt.

    Attributes:
        tokens: Their number.
        pieces: ``PIECE_TOKENS`` ids each, but for the last one.
    """

    tokens: int
    pieces: tuple[bytes, ...]

    def common_tokens(self, other: "PackedIds") -> int:
        """Length of the common prefix, in tokens."""
        most, at = min(self.tokens, other.tokens), 0
        # Whole pieces only: the same bytes are other ids in a piece of another length.
        for one, same in zip(self.pieces, other.pieces[: most // PIECE_TOKENS], strict=False):
            if one != same:
                break
            at += 1
        begin = at * PIECE_TOKENS
        length = min(most - begin, PIECE_TOKENS)
        if not length:
            return most
        differ = self._piece(at)[:length] != other._piece(at)[:length]
        first = int(differ.argmax())
        return begin + (first if differ[first] else length)

    def may_begin_like(self, other: "PackedIds", tokens: int) -> bool:
        """Whether both may have this many leading tokens in common; a quick test, which is wrong only if it says so."""
        if tokens > min(self.tokens, other.tokens):
            return False
        whole, rest = divmod(tokens, PIECE_TOKENS)
        return self.pieces[:whole] == other.pieces[:whole] and (
            not rest or self.pieces[whole].startswith(other.pieces[whole][: rest * _LOW_BYTES])
        )

    def unpacked(self, beginning: bytes = b"") -> bytes:
        """The ids, little-endian u32. ``beginning``: the first of them, as far as they are known."""
        known = len(beginning) // TOKEN_BYTES // PIECE_TOKENS
        pieces = [self._piece(at).tobytes() for at in range(known, len(self.pieces))]
        return b"".join([beginning[: known * PIECE_TOKENS * TOKEN_BYTES], *pieces])

    def _piece(self, at: int) -> npt.NDArray[np.uint32]:
        """The ids of a piece."""
        piece, tokens = self.pieces[at], min(self.tokens - at * PIECE_TOKENS, PIECE_TOKENS)
        ids = np.frombuffer(piece, np.uint16, tokens).astype(np.uint32)
        high = piece[tokens * _LOW_BYTES :]
        plane_bytes = -(-tokens // _BYTE_BITS)
        for bit, begin in enumerate(range(0, len(high), plane_bytes), _LOW_BITS):
            plane = np.frombuffer(high[begin : begin + plane_bytes].ljust(plane_bytes, b"\0"), np.uint8)
            ids |= np.unpackbits(plane, count=tokens).astype(np.uint32) << np.uint32(bit)
        return ids


def packed(ids: bytes) -> PackedIds:
    """Token ids, packed; ``ids`` are little-endian u32."""
    numbers = np.frombuffer(ids, np.uint32, len(ids) // TOKEN_BYTES)
    low = numbers.astype(np.uint16).tobytes()
    high = numbers >> np.uint32(_LOW_BITS)
    bits = int(high.max(initial=0)).bit_length()
    planes = [np.packbits(high & np.uint32(1 << bit) != 0).tobytes() for bit in range(bits)]
    pieces: list[bytes] = []
    for begin in range(0, len(numbers), PIECE_TOKENS):
        end = begin + PIECE_TOKENS
        own = b"".join([plane[begin // _BYTE_BITS : end // _BYTE_BITS] for plane in planes])
        pieces.append(low[begin * _LOW_BYTES : end * _LOW_BYTES] + own.rstrip(b"\0"))
    return PackedIds(len(numbers), tuple(pieces))
