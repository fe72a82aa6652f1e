"""Reads a file into YAML nodes.

Plain scalars are read by the core schema of YAML 1.2, not by YAML 1.1 as PyYAML does it: ``off`` and ``yes`` are text,
``1e3`` is a number, ``010`` is ten, and ``2024-01-01`` is no date. The type of a setting decides what ``off``
means.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from gateway.core.errors import ConfigInvalid

_CORE = "tag:yaml.org,2002:"
TEXT_TAG = _CORE + "str"
MAPPING_TAG = _CORE + "map"
_NULL, _BOOL, _INT, _FLOAT = (_CORE + name for name in ("null", "bool", "int", "float"))
_SCALARS = (
    (_NULL, re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    (_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    (_INT, re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"), list("-+0123456789")),
    (
        _FLOAT,
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
        ),
        list("-+.0123456789"),
    ),
)
SCALAR_TAGS = frozenset({TEXT_TAG, *(tag for tag, _, _ in _SCALARS)})
MAX_BYTES = 4 * 1024 * 1024
"""Largest YAML file that is read: a configuration with ten thousand tenants. PyYAML needs about 0.1 ms for each value,
and is slower the deeper they are nested."""

_MAX_NODES = 100_000
MAX_DEEP = 64

SMALLEST = 'at least one model (models: [{id: NAME, replicas: ["http://HOST:8000"]}])'
"""What a configuration has to hold, for the message about an empty one."""


class _Loader(yaml.SafeLoader):
    """PyYAML's loader with the scalars of YAML 1.2 and with limits."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  PyYAML's own, replaced

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """See ``yaml.composer.Composer``; called for every value, at every level.

        Raises:
            MarkedYAMLError: It is one too many, or nested too deep.
        """
        self._nodes += 1
        too_much = ""
        if self._nodes > _MAX_NODES:
            too_much = f"more than {_MAX_NODES:,} values"
        elif self._depth > MAX_DEEP:
            too_much = f"nested deeper than {MAX_DEEP} levels"
        if too_much:
            raise yaml.MarkedYAMLError(problem=too_much, problem_mark=self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)


def read_document(path: Path, holds: str = SMALLEST) -> yaml.MappingNode:
    """The one mapping that the file holds.

    Args:
        path: The file.
        holds: What it has to hold, for the message about an empty one.

    Raises:
        ConfigInvalid: The file cannot be read, is not UTF-8, is not YAML, is empty, or holds something else. One
            mistake only: what lies behind it cannot be understood.
    """
    text = read_text(path)
    node = compose(path, text)
    if node is None:
        raise ConfigInvalid([f"{path}:1: the file is empty, expected {holds}"])
    if not isinstance(node, yaml.MappingNode):
        raise ConfigInvalid(
            [f"{path}:{node.start_mark.line + 1}: expected a mapping at the top of the file, with {holds}"]
        )
    return node


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file.

    Args:
        path: The file.
        max_bytes: Maximum size.

    Raises:
        ConfigInvalid: It cannot be read, is too large, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigInvalid([f"{path}: cannot be read: {error.strerror or error}"]) from None
    if len(content) > max_bytes:
        raise ConfigInvalid([f"{path}: larger than {max_bytes:,} bytes, the most that is read (is it the right file?)"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigInvalid([f"{path}:{line}: not UTF-8 text (save the file as UTF-8)"]) from None


def compose(path: Path, text: str) -> yaml.Node | None:
    """The YAML document in a text; None if it is empty.

    Args:
        path: Where the text comes from, for mistakes.
        text: The text.

    Raises:
        ConfigInvalid: It is not YAML, more than one document, or holds too many values or levels.
    """
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ConfigInvalid([_syntax_problem(path, text, error)]) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigInvalid([f"{path}:{line}: not valid YAML: a control character (remove it)"]) from None
    except RecursionError:
        raise ConfigInvalid([f"{path}:1: not valid YAML: nested too deep"]) from None
    empty = node is None or (isinstance(node, yaml.ScalarNode) and node.tag == _NULL)
    return None if empty else node


def scalar_value(tag: str, text: str) -> Any:
    """The value of a scalar whose tag is known.

    Raises:
        ValueError: The text does not fit the tag, or is a number of thousands of digits.
    """
    if tag == _NULL:
        return None
    if tag == _BOOL:
        return text.lower() == "true"
    if tag == _INT:
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if tag == _FLOAT:
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def plain_tag(text: str) -> str:
    """The tag that ``text`` has as an unquoted scalar."""
    return next((tag for tag, pattern, _ in _SCALARS if pattern.match(text)), TEXT_TAG)


def _syntax_problem(path: Path, text: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    what = error.problem or "cannot be understood"
    where = f" {error.context}" if error.context else ""
    if error.context_mark and error.context_mark.line + 1 != line:
        where += f" that starts on line {error.context_mark.line + 1}"
    if "flow" in where and "${" in "".join(text.splitlines()[line - 1 : line]):
        fix = " (inside braces and brackets, put ${...} in quotes)"
    elif "'\\t'" in what:
        fix = " (indent with spaces, not tabs)"
    elif what == "mapping values are not allowed here":
        fix = " (check the indentation; put a value that holds ': ' in quotes)"
    elif what.startswith(("more than", "nested deeper")):
        fix = " (the most that is read)"
    elif "document" in what or "document" in where:
        fix = " (one document in a file: remove the further `---`)"
    else:
        fix = " (check indentation, brackets and quotes)"
    return f"{path}:{line}: not valid YAML: {what}{where}{fix}"
