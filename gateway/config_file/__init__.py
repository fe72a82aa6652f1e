"""Reading a YAML configuration file into a pydantic model, with every mistake reported at its line.

``document`` turns the file's bytes into YAML nodes, ``tree`` turns nodes into plain values (and knows the line of
each), pydantic validates the whole, and ``problems`` words what it found. Nothing stops at the first mistake, but for a
file that cannot be read or is not YAML.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from gateway.config_file.document import read_document
from gateway.config_file.problems import describe
from gateway.config_file.tree import FILE_PREFIX, TreeReader
from gateway.values.errors import ConfigInvalid

__all__ = ["named_files", "read_config"]

M = TypeVar("M", bound=BaseModel)


def named_files(path: Path) -> list[Path]:
    """Files that secrets in a configuration file come from (``file:PATH``); none if it cannot be read."""
    try:
        nodes: list[yaml.Node] = [read_document(path)]
    except ConfigInvalid:
        return []
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
    tree = TreeReader(environ)
    data = tree.read(read_document(path), model)
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
