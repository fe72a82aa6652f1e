"""Writes the settings reference, ``docs/reference/settings.md``, from the settings classes.

``python -m docs.generate.settings_page [FILE]``, run in the repository's root.
"""

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from gateway.config.replica_settings import ReplicaSettings
from gateway.config.settings import Settings
from gateway.config.tenants_settings import KeySettings

_PAGE = Path("docs/reference/settings.md")
_INTRODUCTION = """\
# Settings

Written by `python -m docs.generate.settings_page` from the settings classes: change the docstrings there, not here.

One YAML file holds the configuration. Everything but `models` has a default, so this is a whole file:

```yaml
models: [{id: m, replicas: ["http://localhost:8000"]}]
```

- **Check it** with `prefix-gateway check FILE`: every mistake is reported at once, as `FILE:LINE: key: what is wrong`.
  Keys that do not exist are mistakes. Exit code 2 if there is one.
- **Variables.** `${NAME}` inside any value stands for an environment variable, `${NAME:-default}` for the default where
  it is unset or empty. A variable that is not set and has no default is a mistake. `$${` stands for a literal `${`.
  Inside `{…}` and `[…]`, YAML wants such a value in quotes. Keys are not looked at.
- **Secrets.** A setting of type *secret* may name a file: `file:/run/secrets/token`. The line end behind the secret is
  cut off. Secrets never show up in errors, logs or the admin API.
- **Types.** Scalars are read as YAML 1.2 does: `off` is text, except where true or false is expected (there `on`,
  `off`, `yes` and `no` work). Numbers in quotes are text.
- **Paths** that are relative start at the working directory.
- **Changes** are taken over within seconds while the gateway serves, or at once on SIGHUP: those of `admission`,
  `canon`, `explain`, `personal_data`, `prompts`, `spaces` (but `file`, and with a Redis `secret`), `tenants`, `warm`,
  the admin tokens, and of models that were there before all but `id`. The rest needs a restart; what waits for one is
  named in the log (`restart_needed`, with all `keys`).
"""
_WORDS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    SecretStr: "secret",
    Path: "path",
}
_BOUNDS: tuple[tuple[type, str, str], ...] = (
    (Ge, "ge", "at least"),
    (Gt, "gt", "above"),
    (Le, "le", "at most"),
    (Lt, "lt", "below"),
)


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *_section(Settings, "")])


def _section(section: type[BaseModel], path: str) -> Iterator[str]:
    texts = _field_texts(section)
    for name, field in section.model_fields.items():
        key = f"{path}{name}"
        inner = _section_class(field.annotation)
        if inner is None:
            yield from (
                f"### `{key}`",
                "",
                f"{_kind(field)}. {_default(section, name, field)}",
                "",
                texts.get(name, ""),
                "",
            )
            continue
        listed, named = get_origin(field.annotation) is tuple, get_origin(field.annotation) is dict
        yield from (f"{'###' if path else '##'} `{key}`", "")
        if _is_optional(field.annotation):
            yield from ("mapping or null. Default: `null`.", "", texts.get(name, ""), "", _text_of(inner), "")
        elif named:
            kind = "mapping by names. Required." if field.is_required() else "mapping by names. Default: empty."
            yield from (kind, "", texts.get(name, ""), "", _text_of(inner), "")
        elif listed:
            kind = "list. Required." if field.is_required() else "list. Default: empty."
            yield from (kind, "", texts.get(name, ""), "", _text_of(inner), "")
        else:
            yield from (_text_of(inner), "")
        yield from _section(inner, f"{key}[]." if listed else f"{key}.NAME." if named else f"{key}.")


def _section_class(annotation: Any) -> type[BaseModel] | None:
    inner = annotation
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)[0]
    elif get_origin(annotation) is dict:
        inner = get_args(annotation)[1]
    elif _is_optional(annotation):
        inner = next(choice for choice in get_args(annotation) if choice is not type(None))
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def _is_optional(annotation: Any) -> bool:
    """Whether it is a section, or null."""
    if get_origin(annotation) not in {Union, types.UnionType}:
        return False
    choices = [choice for choice in get_args(annotation) if choice is not type(None)]
    return len(choices) == 1 and isinstance(choices[0], type) and issubclass(choices[0], BaseModel)


def _kind(field: FieldInfo) -> str:
    annotation = field.annotation
    optional = ""
    if get_origin(annotation) in {Union, types.UnionType}:
        annotation = next(choice for choice in get_args(annotation) if choice is not type(None))
        optional = " or null"
    if get_origin(annotation) is Literal:
        return f"one of {_choices(annotation)}{optional}"
    if get_origin(annotation) is dict:
        return _mapping(annotation)
    if get_origin(annotation) is tuple:
        item = get_args(annotation)[0]
        item = get_args(item)[0] if get_origin(item) is Annotated else item
        choices = f", each one of {_choices(item)}" if get_origin(item) is Literal else ""
        return f"list{optional}{choices}"
    bounds = [
        f"{word} {getattr(bound, name)}"
        for bound in field.metadata
        for kind, name, word in _BOUNDS
        if isinstance(bound, kind)
    ]
    return ", ".join([_WORDS[annotation] + optional, *bounds])


def _mapping(annotation: Any) -> str:
    """Keys and values are named where they are closed sets, such as rules and their modes."""
    names = [
        ", ".join(f"`{each}`" for each in part) if isinstance(part, type) and issubclass(part, StrEnum) else ""
        for part in get_args(annotation)
    ]
    return f"mapping from any of {' to one of '.join(names)}" if all(names) else "mapping"


def _choices(literal: Any) -> str:
    return ", ".join(f"`{choice}`" for choice in get_args(literal))


def _default(section: type[BaseModel], name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "Required."
    if (section, name) == (ReplicaSettings, "id"):
        return "Default: `host:port` of the URL."
    if (section, name) == (KeySettings, "id"):
        return "Default: the beginning of the hash."
    match field.default:
        case None:
            shown = "null"
        case bool():
            shown = str(field.default).lower()
        case float():
            shown = f"{field.default:g}"
        case "" | ():
            return "Default: empty."
        case tuple():
            shown = f"[{', '.join(map(str, field.default))}]"
        case _:
            shown = str(field.default)
    return f"Default: `{shown}`."


def _field_texts(section: type[BaseModel]) -> dict[str, str]:
    """The docstrings below the fields. The settings classes do not read them: it would take a tenth of the start."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for statement, behind in pairwise(definition.body):
        match statement, behind:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts


def _text_of(section: type[BaseModel]) -> str:
    return " ".join((section.__doc__ or "").split())


def main(arguments: list[str]) -> None:
    """Write the page to the file given, else to its place in the repository."""
    target = Path(arguments[0]) if arguments else _PAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
