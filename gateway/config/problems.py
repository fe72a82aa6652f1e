"""From pydantic's findings to sentences for the person who edits the file: what is wrong, what is expected, the fix."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from gateway.config.yaml_tree import Location, Problem, TreeReader, item_type, member_type

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
