"""Looks for regular expressions of the gateway whose time grows faster than the text.

    python -m benchmarks.patterns [MODULE...]

Every compiled pattern of every module is searched in texts made of its own parts: repeated units, behind and in front
of others. Listed are those whose CPU time for a text four times as long is more than seven times as long (the square
would be sixteen), each with the text. How a pattern is used is not looked at: one that is searched in a bounded piece
of text alone may well stand in the list.
"""

import argparse
import importlib
import itertools
import pkgutil
import random
import re
import re._constants as kinds
import re._parser as parser
import sys
import time
from collections.abc import Iterator
from typing import Any

import gateway

_SHORT, _FACTOR = 1500, 4
_SUSPICIOUS = 7.0
_LEAST_SECONDS = 0.004
_MOST_UNITS = 12
_CATEGORIES = {
    kinds.CATEGORY_DIGIT: "1",
    kinds.CATEGORY_NOT_DIGIT: "a",
    kinds.CATEGORY_SPACE: " ",
    kinds.CATEGORY_NOT_SPACE: "a",
    kinds.CATEGORY_WORD: "a",
    kinds.CATEGORY_NOT_WORD: "-",
}


def compiled(value: Any, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    """Patterns in a module's value."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 3 and isinstance(value, dict):
        for each in value.values():
            yield from compiled(each, depth + 1)
    elif depth < 3 and isinstance(value, list | tuple | frozenset | set):
        for each in value:
            yield from compiled(each, depth + 1)
    elif depth < 3 and type(value).__module__.startswith("gateway"):
        slots = getattr(value, "__dict__", None) or {
            name: getattr(value, name, None) for name in getattr(type(value), "__slots__", ())
        }
        yield from compiled(list(slots.values()), depth + 1)


def patterns(prefixes: list[str]) -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Every pattern at the top of a module, with its name."""
    seen: set[Any] = set()
    for info in pkgutil.walk_packages(gateway.__path__, "gateway."):
        if info.name.endswith("__main__") or (prefixes and not info.name.startswith(tuple(prefixes))):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            for pattern in compiled(value):
                if pattern not in seen and getattr(value, "__module__", info.name).startswith("gateway"):
                    seen.add(pattern)
                    yield f"{info.name}.{name}", pattern


def sample(tree: Any, rnd: random.Random) -> str:
    """A text that the pattern's tree matches, more or less."""
    made = ""
    for kind, argument in tree:
        if kind is kinds.LITERAL:
            made += chr(argument)
        elif kind is kinds.NOT_LITERAL or kind is kinds.ANY:
            made += "a"
        elif kind is kinds.IN:
            made += _of_class(argument, rnd)
        elif kind is kinds.BRANCH:
            made += sample(rnd.choice(argument[1]), rnd)
        elif kind is kinds.SUBPATTERN:
            made += sample(argument[3], rnd)
        elif kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT):
            least, most, inner = argument
            times = rnd.choice([least, min(int(most), least + 2)])
            made += "".join(sample(inner, rnd) for _ in range(times))
        elif kind is kinds.ATOMIC_GROUP:
            made += sample(argument, rnd)
    return made


def _of_class(items: Any, rnd: random.Random) -> str:
    if items[0][0] is kinds.NEGATE:
        return rnd.choice("a1 -")
    kind, argument = rnd.choice(items)
    if kind is kinds.LITERAL:
        return chr(argument)
    if kind is kinds.RANGE:
        return chr(argument[0])
    return _CATEGORIES.get(argument, "a")


def units(pattern: re.Pattern[Any]) -> list[str]:
    """Beginnings of texts it matches, and single characters of them."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = parser.parse(text, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags)
    rnd = random.Random(1)
    found: dict[str, None] = {}
    for _ in range(30):
        whole = sample(tree, rnd)[:60]
        for piece in (whole, whole[:-1], whole[: len(whole) // 2], whole[1:], *whole[:3], whole[-1:]):
            if piece:
                found[piece] = None
    order = sorted(found, key=len)
    return [*order[: _MOST_UNITS // 2], *order[-_MOST_UNITS // 2 :], " ", "a", "1"]


def seconds(pattern: re.Pattern[Any], text: str) -> float:
    """CPU time of all searches for all matches."""
    subject: Any = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
    began = time.process_time()
    for _ in pattern.finditer(subject):
        pass
    return time.process_time() - began


def worst(pattern: re.Pattern[Any]) -> tuple[float, float, str]:
    """Greatest factor by which the time grew, the longer time, and the text."""
    found = (0.0, 0.0, "")
    known = list(dict.fromkeys(units(pattern)))
    for first, unit in itertools.product(["", *known[:6], *known[-3:]], known):
        for last in ("", "\0"):
            short, long = (first + unit * (size // len(unit)) + last for size in (_SHORT, _SHORT * _FACTOR))
            took = seconds(pattern, long)
            if took < _LEAST_SECONDS:
                continue
            before = min(seconds(pattern, short) for _ in range(2))
            took = min(took, seconds(pattern, long))
            factor = took / max(before, 1e-6)
            if took >= _LEAST_SECONDS and factor > found[0]:
                found = (factor, took, f"{first[:20]!r} + {unit[:40]!r} * n + {last!r}")
            if factor > _SUSPICIOUS * 2:
                return found
    return found


def main() -> int:
    """Exit code 1 if a pattern is suspicious."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("module", nargs="*")
    count = suspicious = 0
    for name, pattern in patterns(arguments.parse_args().module):
        count += 1
        factor, took, text = worst(pattern)
        if factor > _SUSPICIOUS:
            suspicious += 1
            print(f"{name}: {factor:.0f} times the time for four times the text, {took * 1000:.0f} ms: {text}")
            print(f"    {str(pattern.pattern)[:150]}", flush=True)
    print(f"{count} patterns, {suspicious} suspicious")
    return int(suspicious > 0)


if __name__ == "__main__":
    sys.exit(main())
