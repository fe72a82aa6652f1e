"""Prints a command's result: styled lines, coloured on a terminal. A reader that leaves early is no error."""

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

WIDTH = 100

Line = tuple[str, str]
"""A line of a report and its style in the syntax of ``rich``; empty for none."""


def coloured(lines: Iterable[Line | Text]) -> str:
    """Lines as one text, with colours if standard output is a terminal."""
    console = Console(highlight=False)
    with console.capture() as report:
        for line in lines:
            console.print(line if isinstance(line, Text) else Text(*line), soft_wrap=True)
    return report.get()


def wrapped(text: str, style: str = "", indent: str = "") -> Iterator[Line]:
    """A text in lines of at most ``WIDTH`` columns."""
    for line in textwrap.wrap(text, WIDTH - len(indent), replace_whitespace=False, expand_tabs=False) or [""]:
        yield (indent + line).rstrip(), style


def shown(text: str) -> str:
    """A text with invisible characters and terminal sequences escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _code(char) for char in text)


def _code(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def counted(number: int, noun: str) -> str:
    """``1 replica``, ``2 replicas``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def printed(text: str) -> None:
    """Write a text to standard output; it may be closed already, as by ``| head``."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
