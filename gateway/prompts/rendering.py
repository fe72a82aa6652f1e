"""Fills the texts of a registered prompt in with the values of a request. Pure."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from gateway.core.errors import BadRequest
from gateway.prompts.template_language import environment

MAX_RENDERED_CHARS = 1_000_000
"""Longest output of all messages of a prompt together: more than any context holds."""

MAX_ITEMS = 1000
"""Most items of a variable that is a list."""

_SHOWN_CHARS = 200

Value = str | int | float | bool | list[Any] | None
"""Default of a variable; None: it has none, so a request must give it."""


class Renderer:
    """Fills in texts.

    Args:
        texts: Text by ``id@version`` of every prompt that may be included.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._environment = environment(texts.get)
        self._compiled: dict[str, jinja2.Template] = {}

    def rendered(self, name: str, contents: Sequence[str], values: Mapping[str, Value]) -> list[str]:
        """Every content filled in.

        Args:
            name: The prompt, for messages.
            contents: The texts of its messages; they were checked before.
            values: The value of every variable.

        Raises:
            BadRequest: the output is too long, or an operation does not fit a value.
        """
        left = MAX_RENDERED_CHARS
        filled = []
        for content in contents:
            pieces = []
            try:
                for piece in self._template(content).generate(values):
                    left -= len(piece)
                    if left < 0:
                        raise BadRequest(
                            f"The prompt {name} becomes longer than {MAX_RENDERED_CHARS} characters with these"
                            " variables. Give shorter ones, or send long texts as messages of your own.",
                            param="variables",
                            code="template_too_long",
                        )
                    pieces.append(piece)
            except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError) as error:
                raise BadRequest(
                    f"The prompt {name} cannot be filled in with these variables: {str(error)[:_SHOWN_CHARS]}. Give"
                    " values of the types that its text expects.",
                    param="variables",
                    code="template_failed",
                ) from None
            filled.append("".join(pieces))
        return filled

    def _template(self, content: str) -> jinja2.Template:
        known = self._compiled.get(content)
        if known is None:
            known = self._compiled[content] = self._environment.from_string(content)
        return known


def filled_in(name: str, declared: Mapping[str, Value], given: Mapping[str, Any]) -> dict[str, Value]:
    """The value of every variable of a prompt.

    Args:
        name: The prompt, for messages.
        declared: Its variables with their defaults.
        given: What the client sent.

    Raises:
        BadRequest: a variable is unknown, missing or of a wrong type; ``param`` names it.
    """
    known = ", ".join(declared) or "none"
    for variable in given:
        if variable not in declared:
            raise BadRequest(
                f"The prompt {name} has no variable {variable[:100]!r}. Leave it out; its variables: {known}.",
                param="variables",
                code="unknown_variable",
            )
    values: dict[str, Value] = {}
    for variable, default in declared.items():
        value = given.get(variable)
        if value is None:
            if default is None:
                raise BadRequest(
                    f"The prompt {name} needs the variable {variable!r}, which has no default. Give it in `variables`.",
                    param=f"variables.{variable}",
                    code="missing_variable",
                )
            value = default
        elif (expected := _expected(value, default)) is not None:
            raise BadRequest(
                f"`variables.{variable}` must be {expected}.", param=f"variables.{variable}", code="invalid_type"
            )
        values[variable] = value
    return values


def is_value(value: Any) -> bool:
    """Whether something can be the value of a variable."""
    if isinstance(value, list):
        return len(value) <= MAX_ITEMS and all(_is_scalar(item) for item in value)
    return _is_scalar(value)


def _is_scalar(value: Any) -> bool:
    # nan and inf are no JSON, and no number that a text could mean.
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, (str, int, bool))


def _expected(value: Any, default: Value) -> str | None:
    """What a variable with this default must be; None if the value is that."""
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        return f"a list of at most {MAX_ITEMS} items"
    if not is_value(value):
        return "a string, a finite number, a boolean, or a list of these"
    match default:
        case None:
            return None
        case bool():
            return None if isinstance(value, bool) else "a boolean, as its default is"
        case int() | float():
            fits = isinstance(value, (int, float)) and not isinstance(value, bool)
            return None if fits else "a number, as its default is"
        case str():
            return None if isinstance(value, str) else "a string, as its default is"
        case _:
            return None if isinstance(value, list) else "a list, as its default is"
