"""Walks over MessagePack without decoding it: finds where values end, in portions and without recursion.

A decoder takes a message in one call, which for some tens of megabytes holds up the event loop for a second. With the
walk, a message is cut into slices that are decoded one by one.
https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from collections.abc import Generator

PORTION = 4096
"""Values that are passed in one portion of work."""

_ARRAY, _MAP, _SIZED = 1, 2, 3
_HEADS = {
    **dict.fromkeys((196, 217), (_SIZED, 1, 0)),  # bin 8, str 8
    **dict.fromkeys((197, 218), (_SIZED, 2, 0)),
    **dict.fromkeys((198, 219), (_SIZED, 4, 0)),
    **{code: (_SIZED, 1 << (code - 0xC7), 1) for code in (0xC7, 0xC8, 0xC9)},  # ext: a type besides the data
    0xDC: (_ARRAY, 2, 0),
    0xDD: (_ARRAY, 4, 0),
    0xDE: (_MAP, 2, 0),
    0xDF: (_MAP, 4, 0),
}


def _whole_length(code: int) -> int:
    """Length of a value that begins with a byte, if the byte determines it; else 0."""
    if code <= 0x7F or code >= 0xE0 or code in (0xC0, 0xC2, 0xC3, 0x80, 0x90):
        return 1
    if 0xA0 <= code <= 0xBF:
        return 1 + code - 0xA0
    fixed = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
    return fixed.get(code) or {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18}.get(code, 0)


_WHOLE = [_whole_length(code) for code in range(256)]


class Walk:
    """A position in a message.

    Attributes:
        data: The message.
        at: The position.

    All methods raise ``ValueError`` if the message is truncated or malformed.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def array(self) -> int | None:
        """Step into an array; returns the number of its values. None, and no step, if it is no array."""
        return self._enter(0x90, _ARRAY)

    def map(self) -> int | None:
        """Step into a map; returns the number of its pairs. None, and no step, if it is no map."""
        return self._enter(0x80, _MAP)

    def skip(self, values: int, max_bytes: int) -> Generator[None, None, bytes]:
        """Step over values; yields between portions and returns what was stepped over."""
        begin, pending = self.at, values
        while pending:
            pending = self._portion(pending)
            if self.at - begin > max_bytes:
                raise ValueError(f"a value takes more than {max_bytes} bytes")
            if pending:
                yield
        return self.data[begin : self.at]

    def _enter(self, short: int, kind: int) -> int | None:
        code = self._byte(self.at)
        if short <= code <= short + 15:
            self.at += 1
            return code - short
        head = _HEADS.get(code)
        if head is None or head[0] != kind:
            return None
        self.at += 1
        return self._number(head[1])

    def _portion(self, pending: int) -> int:
        """Step over up to ``PORTION`` values, whose own values become pending; returns how many then are."""
        data, at = self.data, self.at
        try:
            for _ in range(min(pending, PORTION)):
                length = _WHOLE[data[at]]
                if length:
                    at += length
                    pending -= 1
                    continue
                self.at = at
                pending += self._step() - 1
                at = self.at
        except IndexError:
            raise ValueError("the message ends too early") from None
        if at > len(data):
            raise ValueError("the message ends too early")
        self.at = at
        return pending

    def _step(self) -> int:
        """Step over the head of a value and over the data of a string; returns the number of values inside."""
        code = self._byte(self.at)
        if 0x80 <= code <= 0x9F:
            self.at += 1
            return code - 0x90 if code >= 0x90 else 2 * (code - 0x80)
        head = _HEADS.get(code)
        if head is None:
            raise ValueError(f"no MessagePack: a value begins with {code:#x}")
        kind, size, more = head
        self.at += 1
        count = self._number(size)
        if kind == _SIZED:
            self.at += count + more
            return 0
        if count > len(self.data):
            raise ValueError("more values than the message has bytes")
        return count if kind == _ARRAY else 2 * count

    def _number(self, size: int) -> int:
        end = self.at + size
        if end > len(self.data):
            raise ValueError("the message ends too early")
        number = int.from_bytes(self.data[self.at : end], "big")
        self.at = end
        return number

    def _byte(self, at: int) -> int:
        if at >= len(self.data):
            raise ValueError("the message ends too early")
        return self.data[at]
