"""Tables of what was found, and whether it is as it should be."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.several.replay import Replayed
from benchmarks.several.stage import Totals
from gateway.core.reasons import Reason, Rung

LEAST_HIT_RATE = 0.99
MOST_LADDER_SHARE = 0.03


@dataclass
class Found:
    """One arrangement of gateways.

    Attributes:
        name: For people.
        replayed: What clients saw.
        totals: What the gateways say.
    """

    name: str
    replayed: Replayed
    totals: Totals


def show(title: str, found: Sequence[Found]) -> None:
    """Print all arrangements beside each other; the first is the one that the others are compared with."""
    one = found[0]
    whole = max(one.totals.prompt_tokens, 1)
    print(f"\n{title}: {len(one.replayed.answered)} requests, {one.replayed.prompt_tokens} prompt tokens")
    print(f"{'':28}" + "".join(f"{each.name:>24}" for each in found))
    _line("hit rate", [f"{each.replayed.hit_rate:.4f}" for each in found], _times(found))
    for share in (0.5, 0.9):
        _line(f"TTFT p{share * 100:.0f}, s", [f"{each.replayed.ttft(share):.3f}" for each in found])
    decisions = [Counter(answered.decision for answered in each.replayed.answered) for each in found]
    for kind in sorted(set().union(*decisions)):
        _line(f"sent {kind}", [str(counted[kind]) for counted in decisions])
    _line("sent late p99, s", [f"{each.replayed.late(0.99):.3f}" for each in found])
    _line("explained (only counted)", [f"{each.totals.requests} ({each.totals.skipped})" for each in found])
    print("tokens up to a rung, and what that is more or less of all prompt tokens")
    for rung in Rung:
        _line(f"  {rung}", *_tokens([each.totals.rungs[rung] for each in found], whole))
    print("missed tokens by reason, likewise")
    for reason in Reason:
        tokens = [each.totals.reasons[reason] for each in found]
        if any(tokens):
            _line(f"  {reason}", *_tokens(tokens, whole))


def problems(found: Sequence[Found], checked: Found | None) -> list[str]:
    """What is not as it should be: requests that failed, and what ``checked`` has less or otherwise than the first."""
    one = found[0]
    reported = []
    for each in found:
        reported += [f"{each.name}: {problem}" for problem in each.replayed.problems[:5]]
        explained = each.totals.requests - each.totals.skipped
        if explained != len(each.replayed.answered):
            reported.append(f"{each.name}: {explained} of {len(each.replayed.answered)} requests were explained")
    if checked is None:
        return reported
    ratio = checked.replayed.hit_rate / max(one.replayed.hit_rate, 1e-9)
    if ratio < LEAST_HIT_RATE:
        reported.append(f"{checked.name}: hit rate {ratio:.4f}x that of one gateway, below {LEAST_HIT_RATE}x")
    for rung in Rung:
        share = (checked.totals.rungs[rung] - one.totals.rungs[rung]) / max(one.totals.prompt_tokens, 1)
        if abs(share) > MOST_LADDER_SHARE:
            reported.append(f"{checked.name}: rung {rung} differs by {share:+.2%} of the prompt tokens")
    return reported


def _times(found: Sequence[Found]) -> list[str]:
    one = max(found[0].replayed.hit_rate, 1e-9)
    return ["", *(f"{each.replayed.hit_rate / one:.4f}x" for each in found[1:])]


def _tokens(tokens: Sequence[int], whole: int) -> tuple[list[str], list[str]]:
    return [str(each) for each in tokens], ["", *(f"{(each - tokens[0]) / whole:+.2%}" for each in tokens[1:])]


def _line(title: str, values: Sequence[str], beside: Sequence[str] = ()) -> None:
    beside = beside or [""] * len(values)
    print(f"{title:28}" + "".join(f"{value:>15}{more:>9}" for value, more in zip(values, beside, strict=True)))
