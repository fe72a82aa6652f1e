"""Finds chat templates that print each message by itself, so that a known message need not be rendered again.

Such a template has a beginning, one loop over the messages, and the generation prompt. The text of a conversation is
then that of its first message alone, followed for each other message by a text that depends on this message only, and
by the generation prompt. The template's syntax tree shows whether this holds: what is not known to be harmless counts
as harmful. It need only hold for messages of ``PLAIN_ROLES``, without tools and without arguments of the template.
"""

from collections.abc import Collection, Sequence

from jinja2 import nodes

PLAIN_ROLES = frozenset({"system", "user", "assistant"})

_MESSAGES = "messages"
_GENERATION_PROMPT = "add_generation_prompt"
_HARMLESS = (
    *(nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Assign, nodes.Macro, nodes.Scope, nodes.Name),
    *(nodes.Const, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call, nodes.Keyword, nodes.Filter, nodes.Test),
    *(nodes.Compare, nodes.Operand, nodes.BinExpr, nodes.UnaryExpr, nodes.Concat, nodes.CondExpr, nodes.List),
    *(nodes.Tuple, nodes.Dict, nodes.Pair),
)
_METHODS = frozenset(
    {
        "strip",
        "lstrip",
        "rstrip",
        "split",
        "startswith",
        "endswith",
        "replace",
        "lower",
        "upper",
        "items",
        "keys",
        "get",
    }
)
_FILTERS = frozenset({"trim", "length", "tojson", "string", "lower", "upper", "join", "items", "default", "safe"})


def prints_messages_alone(tree: nodes.Template) -> bool:
    """Whether a template prints each message by itself. Changes the tree."""
    loops = [node for node in tree.body if isinstance(node, nodes.For)]
    if len(loops) != 1 or not isinstance(loops[0].target, nodes.Name):
        return False
    loop, message, at = loops[0], loops[0].target.name, tree.body.index(loops[0])
    _drop_other_roles(loop, message)
    before, after = tree.body[:at], tree.body[at + 1 :]
    macros = [node for node in before if isinstance(node, nodes.Macro)]
    before = [node for node in before if not isinstance(node, nodes.Macro)]
    lists = _lists(before)
    # Everything that may differ with the first message or between the messages.
    varying = _stored(before) | lists | {_GENERATION_PROMPT, "loop"}
    return (
        all(_is_harmless(node, {macro.name for macro in macros}) for node in tree.find_all(nodes.Node))
        and all(_reads_first_message_only(node, lists) for node in before)
        and not any(_reads(node, {_GENERATION_PROMPT}) for node in before)
        and not any(_reads(node, varying) for node in macros)
        and _takes_all_messages(loop, before, lists)
        and message not in _stored(loop.body) | varying
        and not any(_reads(node, varying, first_is_known=_is(loop.iter, _MESSAGES)) for node in loop.body)
        and all(_is_generation_prompt(node, varying) for node in after)
    )


def _is(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def _is_item(node: nodes.Node, name: str, key: str | int) -> bool:
    """Whether an expression is ``name.key`` or ``name[key]``."""
    if isinstance(node, nodes.Getattr):
        return _is(node.node, name) and node.attr == key
    return (
        isinstance(node, nodes.Getitem)
        and _is(node.node, name)
        and isinstance(node.arg, nodes.Const)
        and node.arg.value == key
        and type(node.arg.value) is type(key)
    )


def _stored(body: Sequence[nodes.Node]) -> set[str]:
    """Names that statements set, also within a scope of their own."""
    names = [name for node in body for name in node.find_all(nodes.Name)]
    names += [node for node in body if isinstance(node, nodes.Name)]
    return {name.name for name in names if name.ctx != "load"}


def _is_harmless(node: nodes.Node, macros: Collection[str]) -> bool:
    """Whether the value of an expression, or what a statement does, depends on nothing but what it reads."""
    if isinstance(node, nodes.Call):
        called = node.node
        if isinstance(called, nodes.Name):
            return called.name in macros or called.name == "raise_exception"
        return isinstance(called, nodes.Getattr) and called.attr in _METHODS
    if isinstance(node, nodes.Filter):
        return node.name in _FILTERS
    if isinstance(node, nodes.For):
        return node.test is None and not node.recursive and not node.else_
    return isinstance(node, _HARMLESS)


def _drop_other_roles(node: nodes.Node, message: str) -> None:
    """Empty the branches for messages of other roles than ``PLAIN_ROLES``."""
    for branch in node.find_all(nodes.If):
        branch.elif_ = [each for each in branch.elif_ if not _is_other_role(each.test, message)]
        if _is_other_role(branch.test, message):
            branch.test, branch.body = nodes.Const(False), []


def _is_other_role(test: nodes.Node, message: str) -> bool:
    """Whether a condition holds only for messages of other roles."""
    if isinstance(test, nodes.And):
        return _is_other_role(test.left, message) or _is_other_role(test.right, message)
    if isinstance(test, nodes.Or):
        return _is_other_role(test.left, message) and _is_other_role(test.right, message)
    if not isinstance(test, nodes.Compare) or not _is_item(test.expr, message, "role") or len(test.ops) != 1:
        return False
    value = test.ops[0].expr
    return test.ops[0].op == "eq" and isinstance(value, nodes.Const) and value.value not in PLAIN_ROLES


def _lists(before: Sequence[nodes.Node]) -> set[str]:
    """Names of the messages: all of them, or all but the first one."""
    assigned = [node for node in before if isinstance(node, nodes.Assign)]
    assigned += [assign for node in before for assign in node.find_all(nodes.Assign)]
    return {_MESSAGES} | {
        assign.target.name for assign in assigned if isinstance(assign.target, nodes.Name) and _is_list(assign.node)
    }


def _is_list(node: nodes.Node) -> bool:
    """Whether an expression is ``messages`` or ``messages[1:]``."""
    if not isinstance(node, nodes.Getitem) or not isinstance(node.arg, nodes.Slice):
        return _is(node, _MESSAGES)
    start, stop, step = node.arg.start, node.arg.stop, node.arg.step
    from_second = isinstance(start, nodes.Const) and type(start.value) is int and start.value == 1
    return _is(node.node, _MESSAGES) and from_second and stop is None and step is None


def _reads_first_message_only(node: nodes.Node, lists: Collection[str]) -> bool:
    """Whether a part of the beginning depends on no other message; it may give lists of messages a name."""
    if isinstance(node, nodes.Name):
        return node.name not in lists
    if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name) and node.target.name in lists:
        return node.target.name != _MESSAGES and _is_list(node.node)
    if _is_item(node, _MESSAGES, 0):
        return True
    condition = _condition(node)
    return all(
        _reads_first_message_only(child, lists)
        for child in node.iter_child_nodes()
        if not (child is condition and _is(child, _MESSAGES))  # there is at least one
    )


def _condition(node: nodes.Node) -> nodes.Node | None:
    """The part of an expression or statement of which only the truth counts."""
    if isinstance(node, (nodes.If, nodes.CondExpr)):
        return node.test
    if isinstance(node, nodes.And):
        return node.left
    return node.node if isinstance(node, nodes.Not) else None


def _takes_all_messages(loop: nodes.For, before: Sequence[nodes.Node], lists: Collection[str]) -> bool:
    """Whether a loop is over the messages, be it without the first one."""
    if not isinstance(loop.iter, nodes.Name) or loop.iter.name not in lists:
        return _is_list(loop.iter)
    return loop.iter.name == _MESSAGES or _always_sets(before, loop.iter.name)


def _always_sets(body: Sequence[nodes.Node], name: str) -> bool:
    return any(
        (isinstance(node, nodes.Assign) and _is(node.target, name))
        or (
            isinstance(node, nodes.If)
            and all(_always_sets(each, name) for each in (node.body, node.else_, *(other.body for other in node.elif_)))
        )
        for node in body
    )


def _reads(node: nodes.Node, names: Collection[str], *, first_is_known: bool = False) -> bool:
    """Whether a part of the template reads one of some names; ``loop`` is that of the messages.

    Args:
        node: The part.
        names: The names.
        first_is_known: Whether ``loop.first`` is no such reading: it is true of the first message only.
    """
    if isinstance(node, nodes.Name):
        return node.ctx == "load" and node.name in names
    if first_is_known and _is_item(node, "loop", "first"):
        return False
    if isinstance(node, nodes.For):
        inside = [name for name in names if name != "loop"]
        return _reads(node.iter, names, first_is_known=first_is_known) or any(
            _reads(each, inside) for each in node.body
        )
    return any(_reads(child, names, first_is_known=first_is_known) for child in node.iter_child_nodes())


def _is_generation_prompt(node: nodes.Node, varying: Collection[str]) -> bool:
    return (
        isinstance(node, nodes.If)
        and _is(node.test, _GENERATION_PROMPT)
        and not node.elif_
        and not node.else_
        and not any(_reads(each, varying) for each in node.body)
    )
