"""Reads a YAML configuration file into a pydantic model, and reports every mistake with its line.

``yaml_document`` parses the file into YAML nodes, ``yaml_tree`` converts nodes to plain values with their lines, and
pydantic validates them. ``describe`` words its errors for the operator: the mistake, the expected value, the fix. All
mistakes are reported together, unless the file cannot be read or is not YAML. ``file_stamp`` detects changes of a file.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config.yaml_document import MAPPING_TAG, SMALLEST, TEXT_TAG, compose, read_document, read_text
from gateway.config.yaml_tree import FILE_PREFIX, Location, Problem, TreeReader, item_type, member_type
from gateway.core.errors import ConfigInvalid

Stamp = tuple[int, int, int] | None
"""Equal while a file is unchanged; None: it does not exist or cannot be read."""


def file_stamp(path: Path) -> Stamp:
    """The present stamp of a file. Blocks."""
    try:
        stat = path.stat()
    except OSError:
        return None
    # Not the modification time, which does not change when the file becomes readable.
    return stat.st_ino, stat.st_size, stat.st_ctime_ns


M = TypeVar("M", bound=BaseModel)


def named_files(path: Path) -> list[Path]:
    """Files that secrets in a configuration file come from (``file:PATH``); none if it cannot be read."""
    try:
        top = compose(path, read_text(path))
    except ConfigInvalid:
        return []
    nodes = [] if top is None else [top]
    files, seen = [], set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:  # an alias may stand for what it is part of
            continue
        seen.add(id(node))
        if isinstance(node, yaml.ScalarNode) and node.value.startswith(FILE_PREFIX):
            files.append(Path(node.value.removeprefix(FILE_PREFIX)))
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            nodes += [value for _, value in node.value]
    return files


Check = Callable[[M], Iterable[tuple[Location, str]]]
"""Finds mistakes in valid settings: where they stand in the file, and what is wrong."""


def read_config(
    path: Path, model: type[M], environ: Mapping[str, str], *, check: Check[M] | None = None, holds: str = SMALLEST
) -> M:
    """Read ``path``, validate it as ``model``.

    Args:
        path: The YAML file. Mistakes name it as it is given here.
        model: What the file must hold.
        environ: Where ``${NAME}`` is looked up.
        check: Finds further mistakes, if there are none in single values.
        holds: What the file has to hold, for the message about an empty one.

    Raises:
        ConfigInvalid: Every mistake in the order of the file, as ``PATH:LINE: key.path[0].name: what is wrong``. Values
            of secret fields are never part of it.
    """
    return _read(path, read_document(path, holds), model, environ, check)


def read_list(path: Path, model: type[M], name: str, environ: Mapping[str, str] = os.environ) -> M:
    """Read a file that holds one list, as if it stood at the key ``name`` of a file that ``model`` describes.

    Args:
        path: As for ``read_config``.
        model: What holds the list.
        name: Its key there. A file that has this key at its top is good, too.
        environ: As for ``read_config``.

    Raises:
        ConfigInvalid: As for ``read_config``; also where the file is empty: who writes it anew may not be done.
    """
    node = compose(path, read_text(path))
    if node is None:
        raise ConfigInvalid([f"{path}:1: the file is empty, expected a list ([] for none)"])
    if isinstance(node, yaml.SequenceNode):
        key = yaml.ScalarNode(TEXT_TAG, name, start_mark=node.start_mark, end_mark=node.start_mark)
        node = yaml.MappingNode(MAPPING_TAG, [(key, node)], start_mark=node.start_mark, end_mark=node.end_mark)
    if not isinstance(node, yaml.MappingNode):
        raise ConfigInvalid([f"{path}:{node.start_mark.line + 1}: expected a list at the top of the file"])
    return _read(path, node, model, environ)


def _read(
    path: Path, document: yaml.MappingNode, model: type[M], environ: Mapping[str, str], check: Check[M] | None = None
) -> M:
    tree = TreeReader(environ)
    data = tree.read(document, model)
    problems = list(tree.problems)
    settings: M | None = None
    try:
        # Strict: YAML already tells numbers, booleans and text apart, so `port: true` is a mistake and not port 1.
        settings = model.model_validate(data, strict=True)
    except ValidationError as invalid:
        problems += [describe(error, model, tree) for error in invalid.errors() if not tree.is_broken(error["loc"])]
    if settings is not None and check is not None:
        problems += [Problem(tree.line(place), place, message) for place, message in check(settings)]
    if problems or settings is None:
        problems.sort(key=lambda problem: problem.line)
        raise ConfigInvalid([problem.in_file(path) for problem in problems])
    return settings


_LIST = "a list (`- ` before each item)"
_MAPPING = "a mapping (`key: value`)"
_SHOWN_CHARS = 60
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "path_type": "a path",
    "tuple_type": _LIST,
    "list_type": _LIST,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
}
_LIMITS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def describe(error: ErrorDetails, model: type[BaseModel], tree: TreeReader) -> Problem:
    """Word one of pydantic's findings about the document that ``tree`` read."""
    location: Location = error["loc"]
    kind, context = error["type"], error.get("ctx", {})
    got = tree.stand_in(location) or _shown(error["input"])
    match kind:
        case "missing":
            message = "required, but missing (add it)"
        case "extra_forbidden":
            message = _unknown_key(str(location[-1]), location[:-1], model)
        case "literal_error":
            message = _unknown_choice(error["input"], got, _type_at(model, location))
        case "string_too_short" | "too_short":  # the latter for secrets
            message = "expected text, got an empty one (remove the key or give it a value)"
        case "value_error":
            message = str(context["error"])
        case "string_type" if isinstance(error["input"], bool | int | float):
            message = f"expected text, got {got} (put it in quotes)"
        case _ if kind in _LIMITS:
            word, name = _LIMITS[kind]
            message = f"expected {word} {str(context[name]).removesuffix('.0')}, got {got}"
        case _:
            message = f"expected {_EXPECTED[kind]}, got {got}" if kind in _EXPECTED else error["msg"]
    return Problem(tree.line(location), location, message)


def _unknown_key(key: str, parent: Location, model: type[BaseModel]) -> str:
    section = _type_at(model, parent)
    known = list(section.model_fields)
    if close := get_close_matches(key.lower().replace("-", "_"), known, n=1):
        return f"unknown key (did you mean {close[0]}?)"
    elsewhere = [path for path, name in _keys(model) if name == key]
    if elsewhere:
        return f"unknown key here (it belongs under {' or '.join(elsewhere)})"
    return f"unknown key, expected one of {', '.join(known)}"


def _unknown_choice(value: Any, got: str, literal: Any) -> str:
    choices = [str(choice) for choice in get_args(literal)]
    close = get_close_matches(value.lower(), choices, n=1) if isinstance(value, str) else []
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"expected {', '.join(choices[:-1])} or {choices[-1]}, got {got}{hint}"


def _keys(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Every key of the model with the section it stands in."""
    for name in model.model_fields:
        yield path or "the top of the file", name
        inner = member_type(model, name)
        listed = item_type(inner)
        for section, suffix in ((inner, ""), (listed, "[]")):
            if isinstance(section, type) and issubclass(section, BaseModel):
                yield from _keys(section, f"{path}.{name}{suffix}".removeprefix("."))


def _type_at(model: Any, location: Location) -> Any:
    for part in location:
        model = item_type(model) if isinstance(part, int) else member_type(model, part)
    return model


def _shown(value: Any) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str():
            return repr(value) if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]!r} and more"
        case list() | tuple():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return "something else"
