"""A file of declared prefixes: YAML or JSON with one list, or JSON lines with one prefix each.

Plain YAML scalars are parsed as in the configuration file. ``${NAME}`` is not expanded, because prompts may contain it.
Errors name a line: in YAML that of the key, in JSON that of the beginning of the prefix.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import yaml

from gateway.config.yaml_document import (
    MAX_BYTES,
    MAX_DEEP,
    SCALAR_TAGS,
    TEXT_TAG,
    compose,
    plain_tag,
    read_text,
    scalar_value,
)
from gateway.config.yaml_tree import Problem
from gateway.core.errors import ConfigInvalid
from gateway.warmup.declared import Declared, Location, Malformed, declare

_SMALLEST = "- {model: NAME, messages: [{role: system, content: TEXT}]}"
_MAX_VALUES = 1_000_000
"""Maximum number of values in a YAML file after expanding aliases: with nested aliases a small file can contain
billions."""

_MAX_JSON_BYTES = 64 * 1024 * 1024
"""Maximum size of a JSON file; YAML has the limit of the configuration file."""

_SPACE = re.compile(r"[ \t\r\n]*")


class PrefixFile:
    """A parsed file of prefixes.

    Attributes:
        path: The file.
        values: The prefixes as parsed values.
        declared: The same, validated.
    """

    def __init__(self, path: Path, values: list[Any], lines: dict[Location, int]) -> None:
        self.path = path
        self.values = values
        self._lines = lines
        self.declared = self._each(declare, values)

    def check(self, known: Callable[[Declared], object]) -> None:
        """Check every prefix with a function that knows tenants, models and replicas.

        Raises:
            ConfigInvalid: ``known`` raised ``Malformed`` for at least one prefix.
        """
        self._each(known, self.declared)

    def problem(self, location: Location, message: str) -> str:
        """An error as one line of text, with file and line."""
        known = location
        while known and known not in self._lines:
            known = known[:-1]
        return Problem(self._lines.get(known, 1), location, message).in_file(self.path)

    def _each(self, function: Callable[[Any], Any], items: list[Any]) -> list[Any]:
        results, problems = [], []
        for position, item in enumerate(items):
            try:
                results.append(function(item))
            except Malformed as error:
                problems.append(self.problem((position, *error.location), error.message))
        if problems:
            raise ConfigInvalid(problems)
        return results


def read_prefixes(path: Path) -> PrefixFile:
    """Read and check a file: ``.json`` is JSON, ``.jsonl`` and ``.ndjson`` are JSON lines, everything else is YAML.

    Raises:
        ConfigInvalid: the file cannot be read or parsed, is empty, or has malformed prefixes: one line for each.
    """
    read = {".json": _json_list, ".jsonl": _json_lines, ".ndjson": _json_lines}.get(path.suffix.lower())
    text = read_text(path, _MAX_JSON_BYTES if read is not None else MAX_BYTES)
    try:
        values, lines = read(text) if read is not None else _yaml_list(compose(path, text))
    except _ParseError as error:
        raise ConfigInvalid([Problem(error.line, error.location, error.message).in_file(path)]) from None
    if not values:
        raise ConfigInvalid([f"{path}:1: the file is empty, expected at least one prefix ({_SMALLEST})"])
    return PrefixFile(path, values, lines)


class _ParseError(Exception):
    """The file cannot be parsed."""

    def __init__(self, line: int, message: str, location: Location = ()) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.location = location


_Read = tuple[list[Any], dict[Location, int]]


def _yaml_list(node: yaml.Node | None) -> _Read:
    if node is None:
        return [], {}
    if not isinstance(node, yaml.SequenceNode):
        raise _ParseError(node.start_mark.line + 1, f"expected a list of prefixes at the top of the file ({_SMALLEST})")
    tree = _YamlValues()
    return tree.value(node, ()), tree.lines


class _YamlValues:
    """Converts YAML nodes to plain values. Use once."""

    def __init__(self) -> None:
        self.lines: dict[Location, int] = {}
        self._open: set[int] = set()
        self._count = 0

    def value(self, node: yaml.Node, location: Location) -> Any:
        line = node.start_mark.line + 1
        self._count += 1
        if self._count > _MAX_VALUES:
            raise _ParseError(
                line, f"more than {_MAX_VALUES:,} values (are there aliases inside of aliases?)", location
            )
        if len(location) > MAX_DEEP:
            raise _ParseError(line, f"nested deeper than {MAX_DEEP} levels", location[:2])
        if id(node) in self._open:
            raise _ParseError(line, "an alias that refers to itself (write the value out)", location)
        self._open.add(id(node))
        try:
            match node:
                case yaml.ScalarNode():
                    return _scalar(node, location)
                case yaml.SequenceNode() if node.tag.endswith(":seq"):
                    return [self._item(item, (*location, position)) for position, item in enumerate(node.value)]
                case yaml.MappingNode() if node.tag.endswith(":map"):
                    return self._mapping(node, location)
            raise _ParseError(line, f"unknown tag: {node.tag} (remove it)", location)
        finally:
            self._open.discard(id(node))

    def _item(self, node: yaml.Node, location: Location) -> Any:
        self.lines[location] = node.start_mark.line + 1
        return self.value(node, location)

    def _mapping(self, node: yaml.MappingNode, location: Location) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise _ParseError(line, "a key must be plain text", location)
            key = key_node.value
            here = (*location, key)
            if key == "<<" and key_node.style is None:
                raise _ParseError(line, "merge keys are not supported (write the keys out)", here)
            if key in values:
                raise _ParseError(line, f"duplicate key, first on line {self.lines[here]} (remove one)", here)
            self.lines[here] = line
            values[key] = self.value(value_node, here)
        return values


def _scalar(node: yaml.ScalarNode, location: Location) -> Any:
    line = node.start_mark.line + 1
    tag, text = node.tag, node.value
    if tag not in SCALAR_TAGS or (tag != TEXT_TAG and plain_tag(text) != tag):
        raise _ParseError(line, f"unknown tag, or one that does not match the value: {tag} (remove it)", location)
    try:
        return scalar_value(tag, text)
    except ValueError:
        raise _ParseError(line, "not a usable number", location) from None


def _json_list(text: str) -> _Read:
    at = _after_space(text, 0)
    if at == len(text):
        return [], {}
    if text[at] != "[":
        raise _ParseError(_line(text, at), "expected a list of prefixes at the top of the file ([{...}, {...}])")
    values: list[Any] = []
    lines: dict[Location, int] = {}
    counted, line = at, _line(text, at)
    at = _after_space(text, at + 1)
    closed = text[at : at + 1] == "]"
    while not closed:
        line += text.count("\n", counted, at)
        lines[len(values),], counted = line, at
        value, at = _json_value(text, at, 1)
        values.append(value)
        at = _after_space(text, at)
        if text[at : at + 1] not in ("]", ","):
            raise _ParseError(_line(text, at), "not valid JSON: expected `,` or `]` behind a prefix")
        closed = text[at] == "]"
        at = _after_space(text, at + 1) if not closed else at
    if (rest := _after_space(text, at + 1)) < len(text):
        raise _ParseError(_line(text, rest), "not valid JSON: more text behind the list (remove it)")
    return values, lines


def _json_lines(text: str) -> _Read:
    values: list[Any] = []
    lines: dict[Location, int] = {}
    for number, line in _filled_lines(text):
        lines[len(values),] = number
        at = _after_space(line, 0)
        value, end = _json_value(line, at, number)
        if _after_space(line, end) < len(line):
            raise _ParseError(number, "not valid JSON: more than one value on the line (one prefix on each)")
        values.append(value)
    return values, lines


def _filled_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines(): strings may contain other separators
        if line.strip():
            yield number, line


def _json_value(text: str, at: int, first_line: int) -> tuple[Any, int]:
    """The value at an offset, and the offset behind it; ``first_line``: line number of the text's beginning."""
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        problem, at = error.msg, error.pos
    except ValueError as error:
        problem = str(error)
    except RecursionError:
        problem = "nested too deep"
    raise _ParseError(first_line - 1 + _line(text, at), f"not valid JSON: {problem}")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"duplicate key {duplicate!r} in one object (remove one)")
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
