"""What of Jinja the text of a registered prompt may use, and what a text refers to. Pure.

A text is filled in on the event loop with values from clients. So the language leaves out what could take unbounded
time or memory with the wrong values: calls, multiplication, assignments, loops inside loops. What remains takes time in
proportion to the text, the values and the output: output of variables, filters with constant arguments, conditions,
loops over a list, and texts of other prompts by name. A loop may repeat only what takes little time however long the
variables are: its operations are on its item and on constants, and a text is no list of characters.
"""

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jinja2
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox

FILTERS = (
    *("capitalize", "default", "first", "float", "int", "join", "last", "length", "list", "lower", "round", "sort"),
    *("string", "title", "tojson", "trim", "unique", "upper"),
)
"""Filters that a text may use; their arguments are constants."""

TESTS = ("boolean", "defined", "eq", "even", "false", "in", "ne", "none", "number", "odd", "string", "true")
"""Tests (``is``) that a text may use; their arguments are constants."""

_LIST_FILTERS = ("join", "list", "sort", "unique")
"""Filters that execute Python for every element: of a list, whose length is bounded, and not of a text."""

_OF_LISTS = "items to loop over"
"""Internal filter around what a loop loops over; no text can name it."""

_LOOP_ATTRIBUTES = ("first", "index", "index0", "last", "length")

_ALLOWED = (
    *(jinja2.nodes.Template, jinja2.nodes.Output, jinja2.nodes.TemplateData, jinja2.nodes.Const, jinja2.nodes.Name),
    *(jinja2.nodes.If, jinja2.nodes.For, jinja2.nodes.Include, jinja2.nodes.Filter, jinja2.nodes.Test),
    *(jinja2.nodes.Compare, jinja2.nodes.Operand, jinja2.nodes.And, jinja2.nodes.Or, jinja2.nodes.Not),
    *(jinja2.nodes.CondExpr, jinja2.nodes.Concat, jinja2.nodes.Getitem, jinja2.nodes.Getattr, jinja2.nodes.Keyword),
    *(jinja2.nodes.List, jinja2.nodes.Tuple, jinja2.nodes.Add, jinja2.nodes.Sub, jinja2.nodes.Neg),
)

_ADVICE = "use variables, filters, if, for and include only"


class TemplateMistake(ValueError):
    """A text is no valid template; the message names the line of the text, the mistake and the fix."""


class TemplateFacts(NamedTuple):
    """What a text refers to.

    Attributes:
        variables: Names of its variables.
        includes: Names of the prompts whose text it includes, as ``id@version``, each as often as it is included.
    """

    variables: frozenset[str]
    includes: tuple[str, ...]


def environment(source_of: Callable[[str], str | None] = lambda _: None) -> jinja2.sandbox.SandboxedEnvironment:
    """A Jinja environment for texts of prompts.

    Args:
        source_of: Returns the text of a prompt that is included, by ``id@version``; None if there is none.
    """
    made = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,  # a text without tags stays as it is; Jinja makes every line end a \n
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FunctionLoader(source_of),
        auto_reload=False,
    )
    made.globals.clear()
    made.filters = {name: made.filters[name] for name in FILTERS}
    made.filters["tojson"] = _tojson
    for name in _LIST_FILTERS:
        made.filters[name] = _of_list(name, made.filters[name])
    made.filters[_OF_LISTS] = _items
    made.tests = {name: made.tests[name] for name in TESTS}
    return made


def template_facts(source: str) -> TemplateFacts:
    """Check a text, and find what it refers to.

    Raises:
        TemplateMistake: it is no valid template, or uses what the language of prompts leaves out.
    """
    plain = environment()
    try:
        tree = plain.parse(source)
        _check(tree)
        variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
    except jinja2.TemplateSyntaxError as error:
        raise TemplateMistake(f"line {error.lineno} of the text: {error.message}") from None
    except RecursionError:
        raise TemplateMistake("line 1 of the text: nested too deep (write it flatter)") from None
    includes = tuple(_included(node) for node in tree.find_all(jinja2.nodes.Include))
    return TemplateFacts(variables, includes)


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    def _generate(
        self, source: jinja2.nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        for loop in source.find_all(jinja2.nodes.For):
            items = jinja2.nodes.Filter(loop.iter, _OF_LISTS, [], [], None, None, lineno=loop.lineno)
            loop.iter = items.set_environment(self)
        return super()._generate(source, name, filename, defer_init)


def _items(value: Any) -> Any:
    if isinstance(value, str):
        raise TypeError("a loop needs a list, and got a text")
    return value


def _of_list(name: str, of_jinja: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of Jinja's for a list, which refuses a text."""

    @functools.wraps(of_jinja)  # with its mark: Jinja's object that these filters take as their first argument
    def checked(context: Any, value: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(value, str):
            raise TypeError(f"{name} needs a list, and got a text")
        result = of_jinja(context, value, *arguments, **options)
        return result if isinstance(result, str) else list(result)  # ``unique`` makes an iterator without a length

    return checked


_Items = frozenset[str] | None
"""Names of a loop's item in its body; None outside of loops."""


def _check(tree: jinja2.nodes.Template) -> None:
    """Refuse what the language leaves out; every node is looked at once, and the operands of a loop's operations once
    for each operation around them."""
    waiting: list[tuple[jinja2.nodes.Node, _Items]] = [(tree, None)]
    while waiting:
        node, items = waiting.pop()
        problem = _problem(node, in_loop=items is not None) or (_repeated(node, items) if items is not None else "")
        if problem:
            raise TemplateMistake(f"line {node.lineno} of the text: {problem}")
        if isinstance(node, jinja2.nodes.For):  # its else is filled in at most once
            in_body = frozenset(name.name for name in _names_in(node.target))
            once = [node.iter, *node.else_]
            repeated = [node.target, *node.body, *([] if node.test is None else [node.test])]
            waiting += [*((child, None) for child in once), *((child, in_body) for child in repeated)]
        else:
            waiting += [(child, items) for child in _children(node)]


def _repeated(node: jinja2.nodes.Node, items: frozenset[str]) -> str:
    """What is wrong with an operation that a loop repeats: it may take time in proportion to a variable; empty if it
    does not."""
    match node:
        case jinja2.nodes.Filter() if node.node is None or not _is_short(node.node, items):
            problem = f"the filter {node.name!r}"
        case jinja2.nodes.Concat() if not _is_short(node, items):
            problem = "~"
        case jinja2.nodes.Add() if not (_is_short(node, items) or _is_number(node.left) or _is_number(node.right)):
            problem = "+"
        case jinja2.nodes.Compare() if not _compares_short(node, items):
            problem = "a comparison"
        case _:
            return ""
    return (
        f"inside a loop {problem} may use the loop's item and constants only, because it is repeated (write it in front"
        " of the loop, or work it out in the application)"
    )


def _compares_short(node: jinja2.nodes.Compare, items: frozenset[str]) -> bool:
    """Whether every comparison takes little time: one side is short, or for ``in`` the side that is searched."""
    left = node.expr
    for operand in node.ops:
        right = operand.expr
        if not _is_short(right, items) and (operand.op in ("in", "notin") or not _is_short(left, items)):
            return False
        left = right
    return True


def _is_short(node: jinja2.nodes.Node, items: frozenset[str]) -> bool:
    """Whether a value is made of the loop's items and constants, which are short all together."""
    return all(name.name in items for name in _names_in(node))


def _is_number(node: jinja2.nodes.Node) -> bool:
    """Whether it is a number in any case. What is added to one is a number, too, or the operation fails."""
    if isinstance(node, jinja2.nodes.Const):
        return isinstance(node.value, (int, float))
    return isinstance(node, jinja2.nodes.Getattr) and node.attr in ("index", "index0", "length")


def _names_in(node: jinja2.nodes.Node) -> Iterator[jinja2.nodes.Name]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, jinja2.nodes.Name):
            yield node
        waiting += _children(node)


def _children(node: jinja2.nodes.Node) -> Iterator[jinja2.nodes.Node]:
    # ``loop.index`` is checked as a whole: its name is no variable.
    if not isinstance(node, jinja2.nodes.Getattr):
        yield from node.iter_child_nodes()


def _problem(node: jinja2.nodes.Node, *, in_loop: bool) -> str:
    """What is wrong with a node, with the fix; empty if nothing is."""
    match node:
        case jinja2.nodes.For() | jinja2.nodes.Include() if in_loop:
            return "a loop may hold no other loop and no include (write the list out, or join it in the application)"
        case jinja2.nodes.For(recursive=True):
            return "a loop cannot be recursive (loop over a list)"
        case jinja2.nodes.Include() if _included(node) == "" or node.ignore_missing or not node.with_context:
            return "include takes the id and version of a prompt as text, such as {% include 'tone@v1' %}"
        case jinja2.nodes.Filter(name=name) if name not in FILTERS:
            return f"there is no filter {name!r} for prompts (there is {', '.join(FILTERS)})"
        case jinja2.nodes.Test(name=name) if name not in TESTS:
            return f"there is no test {name!r} for prompts (there is {', '.join(TESTS)})"
        case jinja2.nodes.Filter() | jinja2.nodes.Test() if not _has_constant_arguments(node):
            return f"the arguments of {node.name!r} must be constants"
        case jinja2.nodes.Getattr() if not _is_of_loop(node):
            return f"variables are texts, numbers, booleans and lists, so there is no .{node.attr} (name it a variable)"
        case jinja2.nodes.Name(name="self" | "super" as name):
            return f"{name} is no variable of prompts (name it otherwise)"
        case jinja2.nodes.Name(name="loop") if in_loop:
            return f"loop has no value of its own (write loop.index; there is {', '.join(_LOOP_ATTRIBUTES)})"
        case jinja2.nodes.Getitem(arg=arg) if not isinstance(arg, jinja2.nodes.Const):
            return "the index of a list must be a constant"
        case _ if not isinstance(node, _ALLOWED):
            return f"{type(node).__name__.lower()} is not part of the language of prompts ({_ADVICE})"
    return ""


def _included(node: jinja2.nodes.Include) -> str:
    template = node.template
    return template.value if isinstance(template, jinja2.nodes.Const) and isinstance(template.value, str) else ""


def _has_constant_arguments(node: jinja2.nodes.Filter | jinja2.nodes.Test) -> bool:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    arguments = [*node.args, *(keyword.value for keyword in node.kwargs)]
    return all(isinstance(argument, jinja2.nodes.Const) for argument in arguments)


def _is_of_loop(node: jinja2.nodes.Getattr) -> bool:
    return isinstance(node.node, jinja2.nodes.Name) and node.node.name == "loop" and node.attr in _LOOP_ATTRIBUTES


def _tojson(value: Any) -> str:
    # Not Jinja's: it escapes for HTML.
    return json.dumps(value, ensure_ascii=False)
