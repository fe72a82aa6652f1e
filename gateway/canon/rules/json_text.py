"""``json-text``: writes JSON in the texts of instructions in one way: sorted keys, one line, one kind of spacing."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from gateway.canon.code_spans import fenced, touched
from gateway.canon.rewrite import RawChild, RawJson
from gateway.canon.rule import NOTHING, Detected, Fields, RuleContext
from gateway.canon.rules.text_replacements import TextReplacement, text_edits
from gateway.canon.texts import LEADING_ROLES, LONGEST_TEXT, texts
from gateway.core.canonical import RuleName
from gateway.core.json_edit import string_end

_BEGIN = re.compile(
    r"^[ \t]*+(?:[^\W\d_][\w \-]{0,40}:[ \t]*+)?(?=\{\s{0,200}+\"|\[\s{0,200}+[\[{\"\-0-9tfn])", re.MULTILINE
)
_REST = re.compile(r"[ \t]*+(?:$|(?=\n))")
_MOST_FAILURES, _MOST = 20, 1000
"""Limits for one text, which is left as it is behind them: of what only looks like JSON, because each takes time that
grows with the text in front of it, and of JSON texts, each of which takes some 0.1 ms."""

_DEEPEST = 50
"""Deeper levels are left as they are."""

_SAID = {
    "keys": "The keys of JSON in the text are sorted.",
    "spacing": "JSON in the text gets the usual spacing.",
    RuleName.JSON_TEXT.value: "JSON in the text gets sorted keys and the usual spacing.",
}


class JsonText:
    """Sorts the keys of JSON objects in texts of system and developer, and writes them on one line.

    Takes objects and lists that begin a line, at most behind a label with a colon, and end one. The order of lists and
    the notation of numbers and texts do not change. Leaves code alone, and objects in which a name occurs twice. Codes
    of its edits: ``keys``, ``spacing``.
    """

    name: ClassVar[RuleName] = RuleName.JSON_TEXT

    def detect(self, fields: Fields, given: RuleContext) -> Detected:  # noqa: ARG002 - independent of the context
        """See ``Rule``."""
        edits = [
            edit
            for text in texts(fields, LEADING_ROLES)
            if text.role and len(text.text) <= LONGEST_TEXT and ("{" in text.text or "[" in text.text)
            for edit in text_edits(RuleName.JSON_TEXT, text, list(_pieces(text.text)), _SAID.__getitem__)
        ]
        return Detected(edits) if edits else NOTHING


def _pieces(text: str) -> Iterator[TextReplacement]:
    code = fenced(text)
    reader = _Reader()
    at = failures = done = 0
    while failures < _MOST_FAILURES and done < _MOST and (begin := _BEGIN.search(text, at)):
        start = begin.end()
        try:
            end = reader.end(text, start)
        except json.JSONDecodeError as error:
            at = max(start + 1, error.pos)
            failures += 1
            continue
        except RecursionError:
            return
        at = end
        done += 1
        if reader.is_plain and _REST.match(text, end) and not touched(code, start, end):
            try:
                written = _Written(text[start:end])
            except ValueError:
                continue
            if written.text != text[start:end]:
                yield TextReplacement(start, end, written.text, "keys" if written.sorts else "spacing")


class _Reader:
    """Finds the ends of JSON texts.

    Attributes:
        is_plain: Whether the text read last means the same in another order: no name occurs twice in an object, and no
            value is unknown to JSON (``NaN``).
    """

    def __init__(self) -> None:
        self.is_plain = True
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_int=str, parse_float=str, parse_constant=self._constant
        )

    def end(self, text: str, start: int) -> int:
        """Offset behind the JSON text that begins at an offset.

        Raises:
            json.JSONDecodeError: it is none.
            RecursionError: it is too deep to be read.
        """
        self.is_plain = True
        return self._decoder.raw_decode(text, start)[1]

    def _object(self, pairs: Sequence[tuple[str, Any]]) -> None:
        if len({name for name, _ in pairs}) < len(pairs):
            self.is_plain = False

    def _constant(self, _: str) -> None:
        self.is_plain = False


class _Written:
    """A JSON text written in one way.

    Attributes:
        text: The text.
        sorts: Whether keys are in another order.

    Raises:
        ValueError: it is too deep, or has half a pair of surrogates.
    """

    def __init__(self, before: str) -> None:
        self._raw = RawJson(before.encode())
        self.sorts = False
        self.text = self._of(self._raw.root(), _DEEPEST).decode()

    def _of(self, child: RawChild, deepest: int) -> bytes:
        document = self._raw.document
        opening = document[child.value : child.value + 1]
        if opening not in (b"{", b"["):
            return document[child.value : child.end]
        if not deepest:
            raise ValueError("too deep")
        if opening == b"[":
            return b"[" + b", ".join(self._of(item, deepest - 1) for item in self._raw.items(child.value)) + b"]"
        members = self._raw.members(child.value)
        ordered = sorted(members, key=lambda member: member.name)
        self.sorts = self.sorts or ordered != members
        return b"{" + b", ".join(self._named(each) + self._of(each, deepest - 1) for each in ordered) + b"}"

    def _named(self, member: RawChild) -> bytes:
        document = self._raw.document
        return document[member.start : string_end(document, member.start)] + b": "
