"""Finds chat templates that print the text of a message as it is, between texts that depend on its role only.

Such a message needs no renderer: its text is put between what a template prints around another one. For templates that
``prints_messages_alone`` accepts. The syntax tree shows whether it holds: what is not known to be harmless counts as
harmful. Where the template trims a text, the gateway does, as Python does it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jinja2 import nodes

from gateway.core.errors import TokenizerUnavailable

_TELLS_TYPE = frozenset({"string", "none", "defined", "mapping"})
"""Tests whose answer is the same for every text."""

_MARK, _SPACES = "the text of the message", " \n"

Render = Callable[[Sequence[Any], bool], str]
"""Renders messages, with the generation prompt or without."""


class Around(NamedTuple):
    """What a template prints around the text of a message.

    Attributes:
        before: In front of it.
        behind: Behind it.
        is_trimmed: Whether the text loses the white space at its ends.
    """

    before: str
    behind: str
    is_trimmed: bool


def around(render: Render, in_front: Sequence[Any], role: str) -> Around | None:
    """What a template that ``prints_content`` accepts prints around a message of a role; None if that is not clear.

    Args:
        render: Renders with the template.
        in_front: Messages in front of it.
        role: The role.
    """

    def printed(content: str) -> str:
        return render([*in_front, {"role": role, "content": content}], False)

    try:
        known = render(in_front, False) if in_front else ""
        text, spaced = printed(_MARK), printed(_SPACES + _MARK + _SPACES)
    except TokenizerUnavailable:
        return None
    if not text.startswith(known) or text.count(_MARK) != 1:
        return None
    before, behind = text.split(_MARK)
    is_trimmed = spaced == text
    if not is_trimmed and spaced != f"{before}{_SPACES}{_MARK}{_SPACES}{behind}":
        return None
    return Around(before.removeprefix(known), behind, is_trimmed)


def prints_content(tree: nodes.Template) -> bool:
    """Whether a template prints each message's content as it is, or trimmed, and decides nothing by it.

    Args:
        tree: The tree after ``prints_messages_alone``, which was true.
    """
    loop = next(node for node in tree.body if isinstance(node, nodes.For))
    assert isinstance(loop.target, nodes.Name)
    return _Content(tree, loop.target.name).is_printed(tree.body)


class _Content:
    """The places at which a template reads the content of messages.

    Args:
        tree: The template.
        message: Name of the message in the loop.
    """

    def __init__(self, tree: nodes.Template, message: str) -> None:
        self._message = message
        macros = list(tree.find_all(nodes.Macro))
        self._macros = {macro.name for macro in macros}
        self._arguments = {argument.name for macro in macros for argument in macro.args}
        self._texts: set[str] = set()
        """Names of texts that hold content."""
        assigned = list(tree.find_all(nodes.Assign))
        self._lists = {_target(each) for each in assigned if _is_list(each.node)} | {"messages"}
        for _ in assigned:  # a name may be set to one that is set further down
            self._texts |= {
                _target(each)
                for each in assigned
                if not (_is_list(each.node) or self._is_same_for_every_text(each.node))
            }

    def is_printed(self, body: Sequence[nodes.Node]) -> bool:
        """Whether statements do nothing with content but print it."""
        return all(self._is_printed(node) for node in body)

    def _is_printed(self, node: nodes.Node) -> bool:
        if isinstance(node, nodes.Output):
            return all(self._is_text(each) for each in node.nodes)
        if isinstance(node, nodes.If):
            branches = [node.else_] if self._is_false(node.test) else [node.body, node.else_]
            tests = [] if self._is_false(node.test) else [node.test]
            for other in node.elif_:
                if not self._is_false(other.test):
                    tests.append(other.test)
                    branches.append(other.body)
            return all(map(self._is_same_for_every_text, tests)) and all(map(self.is_printed, branches))
        if isinstance(node, nodes.For):
            if self._is_of_the_messages(node):
                return self.is_printed(node.body)
            return self._is_false(node.iter) or not self._reads(node)
        if isinstance(node, nodes.Assign):
            value = node.node
            return _is_list(value) or self._is_same_for_every_text(value) or self._is_text(value)
        if isinstance(node, (nodes.Macro, nodes.Scope)):
            return self.is_printed(node.body)
        return not self._reads(node)

    def _is_of_the_messages(self, node: nodes.For) -> bool:
        return isinstance(node.target, nodes.Name) and node.target.name == self._message

    def _is_text(self, node: nodes.Node) -> bool:
        """Whether an expression is a text in which content stands as it is."""
        if self._is_content(node) or (isinstance(node, nodes.Name) and node.name in self._texts):
            return True
        if isinstance(node, nodes.Filter) and node.name == "trim" and not (node.args or node.kwargs):
            return node.node is not None and (self._is_content(node.node) or not self._reads(node.node))
        if isinstance(node, nodes.Add):
            return self._is_text(node.left) and self._is_text(node.right)
        if isinstance(node, nodes.Concat):
            return all(map(self._is_text, node.nodes))
        if isinstance(node, nodes.CondExpr):
            return (
                self._is_same_for_every_text(node.test)
                and self._is_text(node.expr1)
                and (node.expr2 is None or self._is_text(node.expr2))
            )
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name in self._macros:
            return not node.kwargs and all(self._is_content(each) or not self._reads(each) for each in node.args)
        return not self._reads(node)

    def _is_content(self, node: nodes.Node) -> bool:
        """Whether an expression is the content itself. What macros are given counts as such in them."""
        if isinstance(node, nodes.Name):
            return node.name in self._arguments
        return self._member(node) == "content"

    def _is_same_for_every_text(self, test: nodes.Node) -> bool:
        """Whether a condition does not depend on a text."""
        if isinstance(test, (nodes.And, nodes.Or)):
            return self._is_same_for_every_text(test.left) and self._is_same_for_every_text(test.right)
        if isinstance(test, nodes.Not):
            return self._is_same_for_every_text(test.node)
        if isinstance(test, nodes.Test) and self._is_content(test.node):
            return test.name in _TELLS_TYPE and not test.args
        return (isinstance(test, nodes.Name) and test.name == "messages") or not self._reads(test)

    def _is_false(self, test: nodes.Node) -> bool:
        """Whether a condition never holds: it asks for a member that plain messages do not have."""
        if isinstance(test, nodes.And):
            return self._is_false(test.left) or self._is_false(test.right)
        if isinstance(test, nodes.Const):
            return not test.value
        member = self._member(test)
        return member not in (None, "role", "content")

    def _reads(self, node: nodes.Node) -> bool:
        """Whether an expression or statement reads content, or may do so."""
        if isinstance(node, nodes.Name):
            return node.ctx == "load" and (
                node.name == self._message or node.name in self._texts | self._lists | self._arguments
            )
        member = self._member(node)
        return member == "content" or (member is None and any(map(self._reads, node.iter_child_nodes())))

    def _member(self, node: nodes.Node) -> str | None:
        """The name of the member of a message that an expression reads; None for another one."""
        if isinstance(node, nodes.Getattr):
            name = node.attr
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            name = node.arg.value
        else:
            return None
        is_message = _is_first(node.node) or (isinstance(node.node, nodes.Name) and node.node.name == self._message)
        # Methods such as ``get`` can read every member.
        return name if is_message and not hasattr(dict, name) else None


def _target(node: nodes.Assign) -> str:
    """The name that is set; empty for several, or a member."""
    return node.target.name if isinstance(node.target, nodes.Name) else ""


def _is_first(node: nodes.Node) -> bool:
    """Whether an expression is the first message."""
    return (
        isinstance(node, nodes.Getitem)
        and isinstance(node.node, nodes.Name)
        and node.node.name == "messages"
        and isinstance(node.arg, nodes.Const)
        and node.arg.value == 0
    )


def _is_list(node: nodes.Node) -> bool:
    """Whether an expression is a list of the messages."""
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        node = node.node
    return isinstance(node, nodes.Name) and node.name == "messages"
