"""Converts YAML nodes to plain values with their lines, replaces variables and reads secrets from files.

The settings' types decide what YAML leaves open: ``off`` is False only where a boolean is expected, a
variable's text becomes a number only where one is expected, and ``file:`` is followed only where a secret is expected.
"""

import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, SecretStr

from gateway.config.yaml_document import MAX_DEEP, SCALAR_TAGS, TEXT_TAG, plain_tag, scalar_value

Location = tuple[str | int, ...]
"""Keys and list positions from the top of the file to a value."""

# A default ends before the next `${`, so that text without a `}` is looked at once and not once for each `${` in it.
_VARIABLE = re.compile(r"(\$\$\{)|\$\{(?:([A-Za-z_][A-Za-z0-9_]*+)(?::-((?:[^}$]|\$(?!\{))*+))?\})?")
_SWITCH_WORDS = {"on": True, "yes": True, "off": False, "no": False}
FILE_PREFIX = "file:"
_BROKEN = object()
_MAX_VALUES = 100_000
_MAX_CHARACTERS = 10_000_000
_MAX_SECRET_BYTES = 64 * 1024


class _TooMuch(Exception):
    """The document expands to more values than are read."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. ``line`` counts from 1."""

    line: int
    location: Location
    message: str

    def in_file(self, path: Path) -> str:
        """The mistake as one line of text, in the form editors and people can follow."""
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{_one_line(part)}" for part in self.location)
        return f"{path}:{self.line}: {key.removeprefix('.') + ': ' if key else ''}{self.message}"


class TreeReader:
    """Reads one document. Use once."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self._environ = environ
        self._lines: dict[Location, int] = {}
        self._broken: set[Location] = set()
        self._private: dict[Location, str] = {}
        self._open: set[int] = set()
        self._values = self._characters = 0

    def read(self, document: yaml.MappingNode, model: type[BaseModel]) -> Any:
        """The document's values. Unreadable values are left out (in lists: None) and reported in ``problems``.

        Aliases are expanded, so a small file may expand to very much: beyond some limits reading stops, and the values
        are empty.
        """
        try:
            return self._value(document, model, ())
        except _TooMuch:
            self._broken.add(())
            return {}

    def line(self, location: Location) -> int:
        """Line of the key, or of the list item; for what is not in the file, of what would hold it."""
        while location and location not in self._lines:
            location = location[:-1]
        return self._lines.get(location, 1)

    def is_broken(self, location: Location) -> bool:
        """Whether the value could not be read, so that a mistake in it is known already."""
        return any(location[:length] in self._broken for length in range(len(location) + 1))

    def stand_in(self, location: Location) -> str | None:
        """The replacement to show for a secret value; None if the value may be shown."""
        for length in range(len(location), 0, -1):
            if location[:length] in self._private:
                return self._private[location[:length]]
        return None

    def _value(self, node: yaml.Node, expected: Any, location: Location) -> Any:
        self._count(node, location)
        if id(node) in self._open:
            return self._break(node, location, "an alias that refers to itself (write the value out)")
        self._open.add(id(node))
        try:
            if expected is SecretStr:
                self._private[location] = "a value that is not shown"
            if isinstance(node, yaml.ScalarNode):
                return self._scalar(node, expected, location)
            if isinstance(node, yaml.SequenceNode) and node.tag.endswith(":seq"):
                return self._sequence(node, expected, location)
            if isinstance(node, yaml.MappingNode) and node.tag.endswith(":map"):
                return self._mapping(node, expected, location)
            return self._break(node, location, f"a tag that is not known: {node.tag} (remove it)")
        finally:
            self._open.discard(id(node))

    def _count(self, node: yaml.Node, location: Location) -> None:
        """One more value.

        Raises:
            _TooMuch: It is one too many.
        """
        self._values += 1
        self._characters += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        aliases = " with its aliases written out (`&` and `*`; use fewer)"
        if self._values > _MAX_VALUES:
            too_much = f"the file stands for more than {_MAX_VALUES:,} values{aliases}"
        elif self._characters > _MAX_CHARACTERS:
            too_much = f"the file stands for more than {_MAX_CHARACTERS:,} characters{aliases}"
        elif len(location) > MAX_DEEP:
            too_much = f"nested deeper than {MAX_DEEP} levels"
        else:
            return
        self._break(node, location[:1], too_much)  # deeper ones may stand anywhere in the file
        raise _TooMuch

    def _sequence(self, node: yaml.SequenceNode, expected: Any, location: Location) -> Any:
        values = []
        for position, item in enumerate(node.value):
            here = (*location, position)
            self._lines[here] = item.start_mark.line + 1
            value = self._value(item, item_type(expected), here)
            values.append(None if value is _BROKEN else value)
        return tuple(values) if get_origin(expected) is tuple else values

    def _mapping(self, node: yaml.MappingNode, expected: Any, location: Location) -> dict[str, Any]:
        values: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(line, location, "a key must be plain text"))
                continue
            key = key_node.value
            here = (*location, key)
            if key in first:
                message = f"stands twice, first on line {first[key]} (remove one)"
                self.problems.append(Problem(line, here, message))
                continue
            first[key] = self._lines[here] = line
            value = self._value(value_node, member_type(expected, key), here)
            if value is not _BROKEN:
                values[key] = value
        return values

    def _scalar(self, node: yaml.ScalarNode, expected: Any, location: Location) -> Any:
        tag, text = node.tag, node.value
        if tag not in SCALAR_TAGS or (tag != TEXT_TAG and plain_tag(text) != tag):
            return self._break(node, location, f"a tag that is not known or does not fit: {tag} (remove it)")
        if tag == TEXT_TAG:
            text = self._substituted(node, location)
            if text is None:
                return _BROKEN
            if expected is SecretStr:
                return self._secret(node, text, location)
            if text != node.value and expected is not str and (node.style is None or expected is not Any):
                tag = plain_tag(text)
        if expected is bool and tag == TEXT_TAG:
            return _SWITCH_WORDS.get(text.lower(), text)
        try:
            value = scalar_value(tag, text)
        except ValueError:
            return self._break(node, location, "not a usable number")
        if value is None and isinstance(expected, type) and issubclass(expected, BaseModel):
            return {}  # a section whose keys are all commented out
        return Path(value) if expected is Path and isinstance(value, str) else value

    def _substituted(self, node: yaml.ScalarNode, location: Location) -> str | None:
        mistakes: list[str] = []
        names: list[str] = []

        def replace(match: re.Match[str]) -> str:
            escaped, name, default = match.groups()
            if escaped:
                return "${"
            if name is None:
                mistakes.append("`${` does not begin a variable (write ${NAME} or ${NAME:-default}; $${ stands for ${)")
                return ""
            names.append(name)
            value = self._environ.get(name)
            if value is None and default is None:
                mistakes.append(f"variable {name} is not set (set it, or give a default: ${{{name}:-default}})")
            # As in a shell, `:-` also replaces an empty variable.
            return (value or default or "") if default is not None else (value or "")

        text = _VARIABLE.sub(replace, node.value)
        if names:
            self._private.setdefault(location, f"the value of {' and '.join(f'${{{name}}}' for name in names)}")
        for mistake in dict.fromkeys(mistakes):
            self._break(node, location, mistake)
        return None if mistakes else text

    def _secret(self, node: yaml.ScalarNode, text: str, location: Location) -> Any:
        if not text.startswith(FILE_PREFIX):
            return text
        path = Path(text.removeprefix(FILE_PREFIX))
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_SECRET_BYTES + 1)
            secret = content.decode().removesuffix("\n").removesuffix("\r")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            return self._break(node, location, f"secret file {path} cannot be read: {reason}")
        if len(content) > _MAX_SECRET_BYTES:
            return self._break(node, location, f"secret file {path} is larger than {_MAX_SECRET_BYTES:,} bytes")
        return secret or self._break(node, location, f"secret file {path} is empty")

    def _break(self, node: yaml.Node, location: Location, message: str) -> Any:
        self._broken.add(location)
        line = self._lines.get(location, node.start_mark.line + 1)
        self.problems.append(Problem(line, location, message))
        return _BROKEN


def _one_line(key: str) -> str:
    return key if key.isprintable() else repr(key)


def member_type(container: Any, key: str) -> Any:
    """Type of ``key`` in ``container``, without None; Any if it is undeclared.

    Of a mapping by names only sections have a type; other values are up to the setting.
    """
    if get_origin(container) is dict:
        value = _plain_type(get_args(container)[1])
        return value if isinstance(value, type) and issubclass(value, BaseModel) else Any
    if isinstance(container, type) and issubclass(container, BaseModel):
        field = container.model_fields.get(key)
        return Any if field is None else _plain_type(field.annotation)
    return Any


def item_type(container: Any) -> Any:
    """Type of a list's items; Any if it is undeclared."""
    arguments = get_args(container)
    return _plain_type(arguments[0]) if get_origin(container) in {tuple, list} and arguments else Any


def _plain_type(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return _plain_type(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        choices = [choice for choice in get_args(annotation) if choice is not type(None)]
        return _plain_type(choices[0]) if len(choices) == 1 else Any
    return annotation
