"""Reading a YAML configuration file into a pydantic model, with every mistake reported at its line.

``document`` turns the file's bytes into YAML nodes, ``tree`` turns nodes into plain values (and knows the line of
each), pydantic validates the whole, and ``problems`` words what it found. Nothing stops at the first mistake, but for a
file that cannot be read or is not YAML. ``stamp`` tells when it has to be read again.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from gateway.config.file_stamp import Stamp, file_stamp
from gateway.config.problems import describe
from gateway.config.yaml_document import MAPPING_TAG, TEXT_TAG, compose, read_document, read_text
from gateway.config.yaml_tree import FILE_PREFIX, TreeReader
from gateway.core.errors import ConfigInvalid

__all__ = ["Stamp", "file_stamp", "named_files", "read_config", "read_list"]

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


def read_config(path: Path, model: type[M], environ: Mapping[str, str]) -> M:
    """Read ``path``, validate it as ``model``.

    Args:
        path: The YAML file. Mistakes name it as it is given here.
        model: What the file must hold.
        environ: Where ``${NAME}`` is looked up.

    Raises:
        ConfigInvalid: Every mistake in the order of the file, as ``PATH:LINE: key.path[0].name: what is wrong``. Values
            of secret fields are never part of it.
    """
    return _read(path, read_document(path), model, environ)


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


def _read(path: Path, document: yaml.MappingNode, model: type[M], environ: Mapping[str, str]) -> M:
    tree = TreeReader(environ)
    data = tree.read(document, model)
    problems = list(tree.problems)
    settings: M | None = None
    try:
        # Strict: YAML already tells numbers, booleans and text apart, so `port: true` is a mistake and not port 1.
        settings = model.model_validate(data, strict=True)
    except ValidationError as invalid:
        problems += [describe(error, model, tree) for error in invalid.errors() if not tree.is_broken(error["loc"])]
    if problems or settings is None:
        problems.sort(key=lambda problem: problem.line)
        raise ConfigInvalid([problem.in_file(path) for problem in problems])
    return settings
