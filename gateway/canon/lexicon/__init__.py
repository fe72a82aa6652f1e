"""Word lists, names and formats by language and country: the data of ``gateway.canon``, in YAML files.

Entries of a list are separated by commas and line ends. A list is one text, or one text per language. A file is read
once, when a module that uses it is imported; an unusable file stops the start with a ``LexiconError``.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parent
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The loader in C is ten times as fast."""


class LexiconError(ValueError):
    """A data file is not usable; the message names file, section and entry."""


def entries(file: str, section: str, *, as_written: bool = False) -> tuple[str, ...]:
    """The entries of a list, in the order of the file.

    Args:
        file: Name of the file without its ending.
        section: Name of the list. Lists by language are joined, and a word of several languages comes several times.
        as_written: Whether entries may have capitals; all others are compared with texts in lower case.

    Raises:
        LexiconError: the list is missing or empty, or an entry is empty, occurs twice, or has capitals.
    """
    value = value_of(file, section)
    lists = value if isinstance(value, Mapping) else {"": value}
    return tuple(
        entry
        for part, text in lists.items()
        for entry in split(text, f"{file}.yaml: {section}{part and f'.{part}'}", as_written=as_written)
    )


def by_part(file: str, section: str, *, as_written: bool = False) -> dict[str, tuple[str, ...]]:
    """The entries of lists by language, country or the like; otherwise as ``entries``."""
    value = value_of(file, section)
    if not isinstance(value, Mapping):
        raise LexiconError(f"{file}.yaml: {section} is no mapping")
    return {
        str(part): split(text, f"{file}.yaml: {section}.{part}", as_written=as_written) for part, text in value.items()
    }


def value_of(file: str, section: str) -> Any:
    """A section as it is in its file.

    Raises:
        LexiconError: the file or the section is missing.
    """
    sections = _read(_FOLDER / f"{file}.yaml")
    if section not in sections:
        raise LexiconError(f"{file}.yaml: the section {section} is missing")
    return sections[section]


def split(text: Any, where: str, *, as_written: bool = False) -> tuple[str, ...]:
    """The entries of a text, checked; ``where`` names it in errors."""
    if not isinstance(text, str) or not text.strip():
        raise LexiconError(f"{where} is no text; put words that YAML takes for another type, such as NO, into quotes")
    found = tuple(entry.strip() for line in text.strip().splitlines() for entry in line.rstrip(" ,").split(","))
    seen: set[str] = set()
    for entry in found:
        if not entry:
            raise LexiconError(f"{where} has an empty entry: there is a comma too many")
        if entry in seen:
            raise LexiconError(f"{where} has {entry!r} twice")
        if not as_written and entry != entry.lower():
            raise LexiconError(f"{where} has {entry!r}, which must be in lower case")
        seen.add(entry)
    return found


def alternatives(words: Iterable[str]) -> str:
    """A part of a regular expression that matches the longest of some words; a word's ``*`` matches any letters."""
    longest_first = sorted(words, key=len, reverse=True)
    return "|".join(re.escape(word).replace(r"\*", r"[^\W\d_]+") for word in longest_first)


@functools.cache
def _read(file: Path) -> Mapping[str, Any]:
    try:
        sections = yaml.load(file.read_bytes(), _Loader)  # noqa: S506 - it is a safe loader
    except (OSError, yaml.YAMLError) as error:
        raise LexiconError(f"{file} cannot be read: {error}") from error
    if not isinstance(sections, dict):
        raise LexiconError(f"{file} has no sections")
    return sections
