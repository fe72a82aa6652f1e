"""Which texts of prompts include which others: circles, and what a text holds with all that it includes. Pure.

Every text and every include is visited once.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gateway.prompts.template_language import TemplateFacts

MAX_INCLUDE_DEPTH = 10
"""Most texts on a way along includes."""


class Whole(NamedTuple):
    """A text with all that it includes.

    Attributes:
        variables: Names of the variables in it.
        characters: Their sum over the texts, each as often as it is included.
        depth: Texts on the longest way along includes, itself included.
    """

    variables: frozenset[str]
    characters: int
    depth: int


def include_circles(facts: Mapping[str, TemplateFacts]) -> dict[tuple[str, str], list[str]]:
    """The includes that close a circle: by the text that includes and the included one, with the texts of the circle,
    the first one repeated at its end.

    Args:
        facts: What each text refers to, by ``id@version``.
    """
    found: dict[tuple[str, str], list[str]] = {}
    done: set[str] = set()
    for start in facts:
        way: list[str] = []
        on_way: set[str] = set()
        waiting = [(start, 0)]
        while waiting:
            name, depth = waiting.pop()
            on_way.difference_update(way[depth:])
            del way[depth:]
            if name in on_way:
                found[way[-1], name] = [*way[way.index(name) :], name]
            elif name in facts and name not in done:
                done.add(name)
                way.append(name)
                on_way.add(name)
                waiting += [(other, depth + 1) for other in facts[name].includes]
    return found


def wholes(facts: Mapping[str, TemplateFacts], lengths: Mapping[str, int]) -> dict[str, Whole]:
    """Every text with all that it includes. Includes must go in no circle; what does not exist counts nothing.

    Args:
        facts: What each text refers to, by ``id@version``.
        lengths: Characters of each text.
    """
    found: dict[str, Whole] = {}
    for start in facts:
        waiting = [start]
        while waiting:
            name = waiting[-1]
            missing = [other for other in facts[name].includes if other in facts and other not in found]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if name in found:
                continue
            included = [found[other] for other in facts[name].includes if other in facts]
            found[name] = Whole(
                facts[name].variables.union(*(each.variables for each in included)),
                lengths[name] + sum(each.characters for each in included),
                1 + max((each.depth for each in included), default=0),
            )
    return found
