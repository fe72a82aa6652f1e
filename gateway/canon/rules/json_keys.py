"""Keys in one order: in the definitions of tools, and in the arguments of tool calls of earlier turns."""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, ClassVar

import orjson

from gateway.canon.edits import Edit
from gateway.canon.key_order import in_order, tool_in_order
from gateway.canon.rewrite import rewritten, written_again
from gateway.canon.rule import NOTHING, Detected, Fields, RuleContext
from gateway.canon.texts import messages
from gateway.canon.tool_names import name_said
from gateway.core.canonical import RuleName
from gateway.core.request import Endpoint

_MOST_KNOWN = 5000


class JsonKeys:
    """Puts the keys of tools into the order in which they are mostly written, and those of tool calls' arguments into
    that of the alphabet. Lists keep their order, and numbers and texts the way they are written.

    Codes of its edits: ``tool_sorted``, one a tool, and ``arguments_sorted``, one a tool call.
    """

    name: ClassVar[RuleName] = RuleName.JSON_KEYS

    def __init__(self) -> None:
        # Tools that are in order: most come again with every request of an application. For each tenant by itself:
        # the time it saves tells that they were seen before.
        self._in_order: set[bytes | None] = set()

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``."""
        if given.endpoint is not Endpoint.CHAT:
            return NOTHING
        edits = [*self._of_tools(fields.get("tools"), given.tenant), *self._of_calls(fields)]
        return Detected(edits) if edits else NOTHING

    def _of_tools(self, tools: Any, tenant: str) -> Iterator[Edit]:
        if not isinstance(tools, list) or not tools:
            return
        known = _digest(tools, tenant)
        if known in self._in_order:
            return
        ordered = True
        for number, tool in enumerate(tools):
            after = tool_in_order(tool)
            if after is not tool:
                said = f"The keys of the tool {name_said(tool)} are put in order."
                ordered = False
                yield Edit(self.name, "tool_sorted", ("tools", number), tool, after, said=said)
        if ordered and known is not None:
            if len(self._in_order) >= _MOST_KNOWN:
                self._in_order.clear()
            self._in_order.add(known)

    def _of_calls(self, fields: Fields) -> Iterator[Edit]:
        for number, message in enumerate(messages(fields)):
            calls = message.get("tool_calls")
            if message.get("role") != "assistant" or not isinstance(calls, list):
                continue
            for place, call in enumerate(calls):
                function = call.get("function") if isinstance(call, Mapping) else None
                before = function.get("arguments") if isinstance(function, Mapping) else None
                after = _sorted_arguments(before) if isinstance(before, str) else before
                if after is not before:
                    path = ("messages", number, "tool_calls", place, "function", "arguments")
                    said = f"The keys of the arguments of a call of {name_said(call)} are put in order."
                    yield Edit(self.name, "arguments_sorted", path, before, after, said=said)


def _digest(tools: Sequence[Any], tenant: str) -> bytes | None:
    """Tells tools apart, and the order of their keys; None if it cannot."""
    try:
        return blake2b(orjson.dumps([tenant, tools]), digest_size=16).digest()
    except orjson.JSONEncodeError:
        return None


def _sorted_arguments(text: str) -> str:
    """An object's JSON text with its keys sorted; itself if they are, or if it is no such text."""
    try:
        body = text.encode()
        before = orjson.loads(body)
        after = in_order(before)
        if after is before or not isinstance(before, dict):
            return text
        again = written_again(body, before, after)
        if again is None:
            json.loads(body, object_pairs_hook=_refuse_doubles)
            again = rewritten(body, before, after)
    except (ValueError, RecursionError):
        return text
    return again.decode()


def _refuse_doubles(pairs: Sequence[tuple[str, Any]]) -> None:
    """Raises:
    ValueError: a name comes twice, and nobody knows which one is meant.
    """
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a name comes twice")
