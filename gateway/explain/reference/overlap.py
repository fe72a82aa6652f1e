"""Overlap of two prompts in tokens. Token ids are little-endian u32, four bytes per token."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import compress

import numpy as np
import numpy.typing as npt

from gateway.core.prompt import TOKEN_BYTES

_TOKEN_BITS = 32

RUN_TOKENS = 8
"""The shortest run of tokens that counts as common. Shorter runs occur in any two texts."""

_LONG_RUN_TOKENS = 16
_FIRST_STEP_BYTES = 64 * TOKEN_BYTES
_CANDIDATES = 8
"""Positions of a run in the reference that are tried. Repetitive text has thousands."""

_INDEXED_TOKENS = 65_536
"""References up to this length have every short run indexed; longer ones every second, third, and so on."""

_HASH_BITS = 64
_SPARSE_BITS = 4
"""Runs of a prompt have at least 16 times as many hashes, so few runs that do not occur look as if they did."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def common_tokens(a: bytes, b: bytes) -> int:
    """Length of the common prefix of two prompts, in tokens."""
    return _common_beginning(a, 0, b, 0, min(len(a), len(b))) // TOKEN_BYTES


def tokens_behind(reference: bytes, prompt: bytes, start: int) -> int:
    """Number of tokens of a prompt from ``start`` on that also occur in the reference from ``start`` on.

    Counts runs of at least ``RUN_TOKENS`` in any order, each token of either prompt once. Exact unless short runs
    repeat by accident; then it may be a few tokens below the maximum pairing. Time is about linear for any input.
    """
    stride = 1 + len(reference) // TOKEN_BYTES // _INDEXED_TOKENS
    reference, prompt = _whole_tokens(reference, start), _whole_tokens(prompt, start)
    most = min(len(reference), len(prompt))
    if most < RUN_TOKENS * TOKEN_BYTES:
        return 0
    # A single change is followed by a common end.
    end = _common_end(reference, len(reference), prompt, len(prompt), most)
    if end < RUN_TOKENS * TOKEN_BYTES:
        end = 0
    if most - end >= RUN_TOKENS * TOKEN_BYTES:
        pairing = _Pairing(reference[: len(reference) - end], prompt[: len(prompt) - end])
        # A sparse index of the reference finds long runs, and leaves little to search for short ones.
        pairing.pair_runs(_LONG_RUN_TOKENS, stride=_LONG_RUN_TOKENS)
        pairing.pair_runs(RUN_TOKENS, stride=stride)
        end += pairing.tokens * TOKEN_BYTES
    return end // TOKEN_BYTES


def _whole_tokens(tokens: bytes, start: int) -> bytes:
    return tokens[start * TOKEN_BYTES : len(tokens) // TOKEN_BYTES * TOKEN_BYTES]


class _Pairing:
    """Pairs runs of a prompt with runs of the reference. All positions and lengths are in bytes."""

    def __init__(self, reference: bytes, prompt: bytes) -> None:
        self.tokens = 0
        self._reference = reference
        self._prompt = prompt
        # One byte per token: 1 if it is paired.
        self._reference_taken = bytearray(len(reference) // TOKEN_BYTES)
        self._prompt_taken = bytearray(len(prompt) // TOKEN_BYTES)
        self._in_prompt, self._in_reference = _shared_runs(reference, prompt)

    def pair_runs(self, run_tokens: int, stride: int) -> None:
        """Pair unpaired runs of at least ``run_tokens``, indexed at every ``stride``-th position of the reference.

        A free, equal position always gives a pair, and a taken one is never tried again, so no input makes this slow.
        """
        places = self._places(run_tokens, stride)
        run = run_tokens * TOKEN_BYTES
        prompt, find = self._prompt, self._in_reference.find
        for begin, end in _free(self._prompt_taken, run_tokens) if places else ():
            since, last = begin, end - run_tokens + 1
            token = find(1, begin, last)
            while token >= 0:
                at = token * TOKEN_BYTES
                found = places.get(prompt[at : at + run])
                best = self._longest(found, at, since * TOKEN_BYTES, end * TOKEN_BYTES, run) if found else None
                if best is None:
                    token += 1
                else:
                    self._take(*best)
                    token = since = (best[1] + best[2]) // TOKEN_BYTES
                token = find(1, token, last)

    def _places(self, run_tokens: int, stride: int) -> Mapping[bytes, list[int]]:
        """Positions of each run of unpaired tokens in the reference, in descending order, if the prompt may have it."""
        places: defaultdict[bytes, list[int]] = defaultdict(list)
        run, step = run_tokens * TOKEN_BYTES, stride * TOKEN_BYTES
        reference = self._reference
        for begin, end in reversed(list(_free(self._reference_taken, run_tokens))):
            shared = self._in_prompt[begin : end - run_tokens + 1 : stride][::-1]
            first = begin * TOKEN_BYTES
            for at in compress(range(first + (len(shared) - 1) * step, first - 1, -step), shared):
                places[reference[at : at + run]].append(at)
        return places

    def _longest(self, found: list[int], at: int, since: int, until: int, run: int) -> tuple[int, int, int] | None:
        """The longest pair through ``at`` within bounds: position in the reference, in the prompt, and length."""
        best: tuple[int, int, int] | None = None
        free: list[int] = []
        longer = b""
        reference, before = self._reference, self._prompt[max(at - TOKEN_BYTES, 0) : at]
        while found and len(free) < _CANDIDATES:
            place = found.pop()
            if self._reference_taken.find(1, place // TOKEN_BYTES, (place + run) // TOKEN_BYTES) >= 0:
                continue
            free.append(place)
            # Most pairs begin here: if more were equal, they would have been found from there.
            goes_back = before and reference.endswith(before, 0, place)
            if not goes_back and not reference.startswith(longer, place):
                continue
            back = self._free_back(place, at, at - since) if goes_back else 0
            ahead = self._free_ahead(place, at, until - at)
            if best is None or back + ahead > best[2]:
                best = (place - back, at - back, back + ahead)
                # What stands in front of the end of any longer pair that begins here.
                longer = self._prompt[at : at + best[2] + TOKEN_BYTES]
        found.extend(reversed(free))
        return best

    def _free_ahead(self, place: int, at: int, most: int) -> int:
        """Length of the equal run of unpaired tokens after a position."""
        most = min(most, len(self._reference) - place)
        length, step = 0, _FIRST_STEP_BYTES
        while length < most:
            step = min(step, most - length)
            first = (place + length) // TOKEN_BYTES
            taken = self._reference_taken.find(1, first, first + step // TOKEN_BYTES)
            open_bytes = step if taken < 0 else (taken - first) * TOKEN_BYTES
            same = _common_beginning(self._reference, place + length, self._prompt, at + length, open_bytes)
            length += same
            if same < step:
                break
            step *= 2
        return length

    def _free_back(self, place: int, at: int, most: int) -> int:
        """Length of the equal run of unpaired tokens before a position."""
        most = min(most, place)
        length, step = 0, _FIRST_STEP_BYTES
        while length < most:
            step = min(step, most - length)
            last = (place - length) // TOKEN_BYTES
            taken = self._reference_taken.rfind(1, last - step // TOKEN_BYTES, last)
            open_bytes = step if taken < 0 else (last - taken - 1) * TOKEN_BYTES
            same = _common_end(self._reference, place - length, self._prompt, at - length, open_bytes)
            length += same
            if same < step:
                break
            step *= 2
        return length

    def _take(self, place: int, at: int, length: int) -> None:
        tokens = length // TOKEN_BYTES
        self.tokens += tokens
        marks = b"\1" * tokens
        self._reference_taken[place // TOKEN_BYTES : place // TOKEN_BYTES + tokens] = marks
        self._prompt_taken[at // TOKEN_BYTES : at // TOKEN_BYTES + tokens] = marks


def _free(taken: bytearray, least: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of at least so many free tokens, as of the call."""
    taken = bytearray(taken)
    begin = taken.find(0)
    while begin >= 0:
        end = taken.find(1, begin)
        if end < 0:
            end = len(taken)
        if end - begin >= least:
            yield begin, end
        begin = taken.find(0, end)


def _shared_runs(reference: bytes, prompt: bytes) -> tuple[bytes, bytes]:
    """For each short run of a reference, 1 if it may occur in a prompt, else 0; and the reverse.

    Compares hashes: few of those that occur on one side only look as if they were shared, and are not looked up then.
    """
    tokens = len(reference) // TOKEN_BYTES
    hashes = _run_hashes(reference + prompt)
    bits = len(hashes).bit_length() + _SPARSE_BITS
    hashes = (hashes >> np.uint64(_HASH_BITS - bits)).view(np.int64)
    one, other = hashes[: max(tokens - RUN_TOKENS + 1, 0)], hashes[tokens:]
    occurs = np.zeros(1 << bits, bool)
    occurs[one] = True
    in_reference = occurs[other]
    occurs[one] = False
    occurs[other[in_reference]] = True
    return occurs[one].tobytes(), in_reference.tobytes()


def _run_hashes(tokens: bytes) -> npt.NDArray[np.uint64]:
    """The hash of each run of ``RUN_TOKENS``."""
    hashes = np.frombuffer(tokens, np.uint32).astype(np.uint64) * _FACTOR
    length = 1
    while length < RUN_TOKENS:
        # The hash of a run is made of those of its halves.
        hashes = hashes[:-length] * _FACTOR + hashes[length:]
        length *= 2
    return hashes


def _common_beginning(a: bytes, at_a: int, b: bytes, at_b: int, most: int) -> int:
    """Number of equal bytes after two positions, in whole tokens and at most ``most``."""
    length = most // TOKEN_BYTES * TOKEN_BYTES
    one, other = a[at_a : at_a + length], b[at_b : at_b + length]
    if one == other:
        return length
    differ = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return ((differ & -differ).bit_length() - 1) // _TOKEN_BITS * TOKEN_BYTES


def _common_end(a: bytes, end_a: int, b: bytes, end_b: int, most: int) -> int:
    """Number of equal bytes before two positions, in whole tokens and at most ``most``."""
    length = most // TOKEN_BYTES * TOKEN_BYTES
    one, other = a[end_a - length : end_a], b[end_b - length : end_b]
    if one == other:
        return length
    differ = int.from_bytes(one, "little") ^ int.from_bytes(other, "little")
    return length - -(-differ.bit_length() // _TOKEN_BITS) * TOKEN_BYTES
