"""The rule: what varies in the leading messages goes behind the last message."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from gateway.canon.edits import Edit, applied
from gateway.canon.rule import NOTHING, Detected, Fields, Given
from gateway.canon.rules.dynamic.block import BlockForm
from gateway.canon.rules.dynamic.keys import keys
from gateway.canon.rules.dynamic.pieces import Piece
from gateway.canon.rules.dynamic.search import Search
from gateway.canon.settings import DynamicSuffixSettings
from gateway.canon.texts import Text, leading_messages, messages, texts_of
from gateway.json_bytes import Path
from gateway.values.canonical import RuleName

_TAKERS = frozenset({"user", "tool"})
"""Behind whose messages a block may stand."""

_GAP = "\n\n"
_UNSEEN = re.compile("[\\s\u200b\u2060\ufeff]+")


class DynamicSuffix:
    """Moves what varies. Knows what it found in texts seen before, else without a state.

    Args:
        settings: What is moved, and how it is written.
    """

    name: ClassVar[RuleName] = RuleName.DYNAMIC_SUFFIX

    def __init__(self, settings: DynamicSuffixSettings) -> None:
        self._form = BlockForm(settings)
        self._search = Search(settings, self._form.pattern)

    def detect(self, fields: Fields, given: Given) -> Detected:
        """What is moved, and the blocks of earlier turns that are put back."""
        leading = leading_messages(fields)
        said = messages(fields)
        if not leading or leading == len(said):
            return NOTHING
        found = self._found(fields, leading, given.now)
        if not found:
            return NOTHING
        taker = next((n for n in range(len(said) - 1, leading - 1, -1) if said[n].get("role") in _TAKERS), None)
        if taker is None or not _takes(said[taker]):
            return NOTHING
        below = self._form.largest(text.text for n in range(leading) for text in _texts(said[n], n))
        moves, values = self._moves(found, below)
        lasting = [each for _, pieces in found for piece in pieces for each in piece.lasting]
        try:
            known = list(keys(messages(applied(fields, moves)), given.owner, lasting, taker))
        except (ValueError, RecursionError):
            return NOTHING
        return self._placed(said, moves, values, known, given, leading=leading, taker=taker, below=below)

    def _found(self, fields: Fields, leading: int, now: float) -> list[tuple[Text, Sequence[Piece]]]:
        model = fields.get("model")
        count = self._form.largest(text.text for n in range(leading) for text in _texts(messages(fields)[n], n)) + 1
        found: list[tuple[Text, Sequence[Piece]]] = []
        for number, message in enumerate(messages(fields)[:leading]):
            for text in _texts(message, number):
                pieces = self._search.pieces(
                    text.text, now, model if isinstance(model, str) else "", partial(self._pointer, count)
                )
                if pieces:
                    count += len(pieces)
                    found.append((text, pieces))
        return found

    def _pointer(self, first: int, number: int) -> str:
        return self._form.pointer(first + number)

    def _moves(self, found: Sequence[tuple[Text, Sequence[Piece]]], below: int) -> tuple[list[Edit], dict[int, str]]:
        """The edits of the leading messages, and what the pointers stand for."""
        edits: list[Edit] = []
        values: dict[int, str] = {}
        for text, pieces in found:
            for piece in pieces:
                number = below + len(values) + 1
                values[number] = text.text[piece.start : piece.end]
                names = " and ".join(piece.names)
                said = f"What varies ({names}) goes behind the last message; {self._form.pointer(number)} stays."
                pointer = self._form.pointer(number)
                edits.append(self._edit("moved", text.path, values[number], pointer, piece.start, said))
        return edits, values

    def _placed(
        self,
        said: Sequence[Mapping[str, Any]],
        moves: Sequence[Edit],
        values: Mapping[int, str],
        known: Sequence[bytes],
        given: Given,
        *,
        leading: int,
        taker: int,
        below: int,
    ) -> Detected:
        """The moves, with the blocks of earlier turns and the one of this."""
        edits = list(moves)
        latest: dict[int, str] = {}
        earlier = [n for n in range(leading, taker) if said[n].get("role") in _TAKERS]
        remembered = False
        for number in earlier:
            block = given.recall(known[number])
            remembered = remembered or block is not None
            if block and _takes(said[number]):
                latest |= self._form.read(block, below)
                edits.append(
                    self._behind(said, number, block, "restored", "The context of an earlier turn is put back.")
                )
        changed = {number: value for number, value in values.items() if latest.get(number) != value}
        # That a turn needed no block is remembered as well: a block of its first try may be.
        block = self._form.written(changed) if changed else ""
        if block:
            edits.append(self._behind(said, taker, block, "added", "What was moved stands behind this message."))
        return Detected(edits, {known[taker]: block}, context_lost=bool(earlier) and not remembered)

    def _behind(self, said: Sequence[Mapping[str, Any]], number: int, block: str, what: str, why: str) -> Edit:
        content = said[number]["content"]
        path: Path = ("messages", number, "content")
        if isinstance(content, str):
            return self._edit(what, path, "", _GAP + block, len(content), why)
        return self._edit(what, path, content, [*content, {"type": "text", "text": _GAP + block}], None, why)

    def _edit(self, what: str, path: Path, before: Any, after: Any, start: int | None, said: str) -> Edit:
        return Edit(self.name, what, path, before, after, start, said)


def _texts(message: Mapping[str, Any], number: int) -> list[Text]:
    return list(texts_of(message, number, str(message.get("role"))))


def _takes(message: Mapping[str, Any]) -> bool:
    """Whether a block can be put behind a message.

    Not behind a text that shows nothing: with something behind it, other rules would clean it up.
    """
    content = message.get("content")
    return isinstance(content, list) or (isinstance(content, str) and not _UNSEEN.fullmatch(content))
