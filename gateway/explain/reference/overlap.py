"""Overlap of two prompts in tokens. Token ids are little-endian u32, four bytes per token."""

from collections.abc import Iterator

TOKEN_BYTES = 4

RUN_TOKENS = 8
"""The shortest run of tokens that counts as common. Shorter runs occur in any two texts."""

_LONG_RUN_TOKENS = 16
_FIRST_STEP_BYTES = 64 * TOKEN_BYTES
_CANDIDATES = 8
"""Positions of a run in the reference that are tried. Repetitive text has thousands."""

_INDEXED_TOKENS = 65_536
"""References up to this length have every short run indexed; longer ones every second, third, and so on."""


def common_tokens(a: bytes, b: bytes) -> int:
    """Length of the common prefix of two prompts, in tokens."""
    most = min(len(a), len(b))
    if a.startswith(b[:most]):
        return most // TOKEN_BYTES
    return _common_beginning(a, 0, b, 0, most) // TOKEN_BYTES


def tokens_behind(reference: bytes, prompt: bytes, start: int) -> int:
    """Number of tokens of a prompt from ``start`` on that also occur in the reference from ``start`` on.

    Counts runs of at least ``RUN_TOKENS`` in any order, each token of either prompt once. Exact unless short runs
    repeat by accident; then it may be a few tokens below the maximum pairing. Time is about linear for any input.
    """
    behind = start * TOKEN_BYTES
    if min(len(reference), len(prompt)) - behind < RUN_TOKENS * TOKEN_BYTES:
        return 0
    pairing = _Pairing(reference[behind:], prompt[behind:])
    pairing.pair_end()
    # A sparse index of the reference finds long runs, and leaves little to search for short ones.
    pairing.pair_runs(_LONG_RUN_TOKENS, stride=_LONG_RUN_TOKENS)
    pairing.pair_runs(RUN_TOKENS, stride=1 + len(reference) // TOKEN_BYTES // _INDEXED_TOKENS)
    return pairing.tokens


class _Pairing:
    """Pairs runs of a prompt with runs of the reference. All positions and lengths are in bytes."""

    def __init__(self, reference: bytes, prompt: bytes) -> None:
        self.tokens = 0
        self._reference = reference[: len(reference) // TOKEN_BYTES * TOKEN_BYTES]
        self._prompt = prompt[: len(prompt) // TOKEN_BYTES * TOKEN_BYTES]
        # One byte per token: 1 if it is paired.
        self._reference_taken = bytearray(len(self._reference) // TOKEN_BYTES)
        self._prompt_taken = bytearray(len(self._prompt) // TOKEN_BYTES)

    def pair_end(self) -> None:
        """Pair the common suffix, which follows a single change."""
        reference, prompt = self._reference, self._prompt
        length = _common_end(reference, len(reference), prompt, len(prompt), min(len(reference), len(prompt)))
        if length >= RUN_TOKENS * TOKEN_BYTES:
            self._take(len(reference) - length, len(prompt) - length, length)

    def pair_runs(self, run_tokens: int, stride: int) -> None:
        """Pair unpaired runs of at least ``run_tokens``, indexed at every ``stride``-th position of the reference.

        A free, equal position always gives a pair, and a taken one is never tried again, so no input makes this slow.
        """
        places = self._places(run_tokens, stride)
        if not places:
            return
        run = run_tokens * TOKEN_BYTES
        for begin, end in _free(self._prompt_taken):
            at, last, since = begin * TOKEN_BYTES, end * TOKEN_BYTES - run, begin * TOKEN_BYTES
            while at <= last:
                found = places.get(self._prompt[at : at + run])
                best = self._longest(found, at, since, end * TOKEN_BYTES, run) if found else None
                if best is None:
                    at += TOKEN_BYTES
                    continue
                self._take(*best)
                at = since = best[1] + best[2]

    def _places(self, run_tokens: int, stride: int) -> dict[bytes, list[int]]:
        """Positions of each run of unpaired tokens in the reference, in descending order."""
        places: dict[bytes, list[int]] = {}
        run, reference = run_tokens * TOKEN_BYTES, self._reference
        for begin, end in _free(self._reference_taken):
            for at in range(begin * TOKEN_BYTES, end * TOKEN_BYTES - run + 1, stride * TOKEN_BYTES):
                places.setdefault(reference[at : at + run], []).append(at)
        for found in places.values():
            found.reverse()
        return places

    def _longest(self, found: list[int], at: int, since: int, until: int, run: int) -> tuple[int, int, int] | None:
        """The longest pair through ``at`` within bounds: position in the reference, in the prompt, and length."""
        best: tuple[int, int, int] | None = None
        free: list[int] = []
        while found and len(free) < _CANDIDATES:
            place = found.pop()
            if self._reference_taken.find(1, place // TOKEN_BYTES, (place + run) // TOKEN_BYTES) >= 0:
                continue
            free.append(place)
            back = self._free_back(place, at, at - since)
            ahead = self._free_ahead(place, at, until - at)
            if best is None or back + ahead > best[2]:
                best = (place - back, at - back, back + ahead)
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


def _free(taken: bytearray) -> Iterator[tuple[int, int]]:
    """Begin and end of each run of free tokens, as of the call."""
    taken = bytearray(taken)
    begin = taken.find(0)
    while begin >= 0:
        end = taken.find(1, begin)
        if end < 0:
            end = len(taken)
        yield begin, end
        begin = taken.find(0, end)


def _common_beginning(a: bytes, at_a: int, b: bytes, at_b: int, most: int) -> int:
    """Number of equal bytes after two positions, in whole tokens and at most ``most``."""
    length, step, most = 0, _FIRST_STEP_BYTES, most // TOKEN_BYTES * TOKEN_BYTES
    while length < most:
        step = min(step, most - length)
        if not a.startswith(b[at_b + length : at_b + length + step], at_a + length):
            break
        length += step
        step *= 2
    else:
        return most
    while step > TOKEN_BYTES:
        half = step // TOKEN_BYTES // 2 * TOKEN_BYTES
        if a.startswith(b[at_b + length : at_b + length + half], at_a + length):
            length += half
            step -= half
        else:
            step = half
    return length


def _common_end(a: bytes, end_a: int, b: bytes, end_b: int, most: int) -> int:
    """Number of equal bytes before two positions, in whole tokens and at most ``most``."""
    length, step, most = 0, _FIRST_STEP_BYTES, most // TOKEN_BYTES * TOKEN_BYTES
    while length < most:
        step = min(step, most - length)
        if not a.endswith(b[end_b - length - step : end_b - length], 0, end_a - length):
            break
        length += step
        step *= 2
    else:
        return most
    while step > TOKEN_BYTES:
        half = step // TOKEN_BYTES // 2 * TOKEN_BYTES
        if a.endswith(b[end_b - length - half : end_b - length], 0, end_a - length):
            length += half
            step -= half
        else:
            step = half
    return length
