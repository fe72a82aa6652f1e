"""``dynamic-suffix``: moves varying values out of the leading messages into a context block behind the last message.

Each value is replaced by a constant pointer. The blocks of earlier turns are stored by the key of the conversation
(``keys``) and put back in later turns, so that the conversation stays a prefix of its next turn.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext, applied
from gateway.canon.rules.dynamic.context_blocks import BlockForm, keys, recalled, remembered
from gateway.canon.rules.dynamic.movable_pieces import MovablePiece
from gateway.canon.rules.dynamic.search import Search
from gateway.canon.texts import BLOCK_ROLES, Text, leading_messages, messages, texts_of
from gateway.config.canon_settings import DynamicSuffixSettings
from gateway.core.canonical import RuleName
from gateway.core.json_edit import Path

_GAP = "\n\n"
_BLANKS, _INVISIBLE = " \t\r\n", " \t\r\n\u200b\u2060\ufeff"


class DynamicSuffix:
    """Moves varying values. Stateless except for a cache of findings.

    Args:
        settings: Kinds and slots to move, and format of the block.
    """

    name: ClassVar[RuleName] = RuleName.DYNAMIC_SUFFIX

    def __init__(self, settings: DynamicSuffixSettings) -> None:
        self._form = BlockForm(settings)
        self._search = Search(settings, self._form.pattern)

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``. The edits move values and put back blocks of earlier turns."""
        leading = leading_messages(fields)
        said = messages(fields)
        if not leading or leading == len(said):
            return NOTHING
        texts = _leading_texts(said, leading)
        below = self._form.largest(text.text for text in texts)
        found = self._found(texts, fields.get("model"), given, below)
        if not found:
            return NOTHING
        taker = next((n for n in range(len(said) - 1, leading - 1, -1) if said[n].get("role") in BLOCK_ROLES), None)
        if taker is None or not _takes(said[taker]):
            return NOTHING
        moves, values = self._moves(found, below)
        lasting = [each for _, pieces in found for piece in pieces for each in piece.lasting]
        try:
            known = list(keys(messages(applied(fields, moves)), given.owner, lasting, taker))
        except (ValueError, RecursionError):
            return NOTHING
        return self._placed(said, moves, values, known, given, leading=leading, taker=taker, below=below)

    def _found(
        self, texts: Sequence[Text], model: object, given: RuleContext, below: int
    ) -> list[tuple[Text, Sequence[MovablePiece]]]:
        """The pieces to move in each text; their numbers begin behind ``below``."""
        count = below + 1
        found: list[tuple[Text, Sequence[MovablePiece]]] = []
        for text in texts:
            pointer = partial(self._pointer, count)
            pieces = self._search.pieces(
                text.text, given.now, model if isinstance(model, str) else "", pointer, tenant=given.tenant
            )
            if pieces:
                count += len(pieces)
                found.append((text, pieces))
        return found

    def _pointer(self, first: int, number: int) -> str:
        return self._form.pointer(first + number)

    def _moves(
        self, found: Sequence[tuple[Text, Sequence[MovablePiece]]], below: int
    ) -> tuple[list[Edit], dict[int, str]]:
        """The edits of the leading messages, and the moved values by pointer number."""
        edits: list[Edit] = []
        values: dict[int, str] = {}
        for text, pieces in found:
            for piece in pieces:
                number = below + len(values) + 1
                values[number] = text.text[piece.start : piece.end]
                names = " and ".join(piece.names)
                pointer = self._form.pointer(number)
                said = f"Varying values ({names}) are moved behind the last message; {pointer} replaces them."
                edits.append(Edit(self.name, "moved", text.path, values[number], pointer, piece.start, said))
        return edits, values

    def _placed(
        self,
        said: Sequence[Mapping[str, Any]],
        moves: Sequence[Edit],
        values: Mapping[int, str],
        known: Sequence[bytes],
        given: RuleContext,
        *,
        leading: int,
        taker: int,
        below: int,
    ) -> Detected:
        """The moves, plus the blocks of the earlier turns and of this turn."""
        edits = list(moves)
        latest: dict[int, str] = {}
        takers = [n for n in range(leading, taker + 1) if said[n].get("role") in BLOCK_ROLES]
        past = recalled(said, takers[:-1], known, given)
        blocks = {number: block for number, block in past.blocks.items() if _takes(said[number])}
        # The model would believe a forged block in a message, unless the genuine one follows it.
        forged = self._last_forged(said[leading : taker + 1]) + leading
        for number, block in sorted(blocks.items()):
            if number >= forged:
                latest |= self._form.read(block, below)
            edits.append(self._behind(said, number, block, "restored", "The context of an earlier turn is put back."))
        changed = {number: value for number, value in values.items() if latest.get(number) != value}
        if changed:
            blocks[taker] = block = self._form.written(changed)
            edits.append(self._behind(said, taker, block, "added", "The moved values are appended to this message."))
        return Detected(edits, remembered(takers, blocks, known, given.owner), context_lost=not past.is_whole)

    def _last_forged(self, said: Sequence[Mapping[str, Any]]) -> int:
        """Index of the last message that contains something like a context block; 0 if there is none."""
        texts = ((n, text.text) for n, message in enumerate(said) for text in texts_of(message, n, ""))
        return max((n for n, text in texts if self._form.is_in(text)), default=0)

    def _behind(self, said: Sequence[Mapping[str, Any]], number: int, block: str, what: str, why: str) -> Edit:
        """The edit that appends a block to a message."""
        message = said[number]
        content = message["content"]
        path: Path = ("messages", number, "content")
        if isinstance(content, list):
            return Edit(self.name, what, path, content, [*content, {"type": "text", "text": _GAP + block}], said=why)
        seen = len(content)
        if message.get("role") == "user":
            seen = len(content.rstrip(_BLANKS)) if content.strip(_INVISIBLE) else 0
        if not content[:seen]:
            # There is no visible text to separate it from.
            return Edit(self.name, what, path, content, block, 0, why)
        # Trailing whitespace is removed: in front of the block it would end a line, where other rules remove it.
        return Edit(self.name, what, path, content[seen:], _GAP + block, seen, why)


def _leading_texts(said: Sequence[Mapping[str, Any]], leading: int) -> list[Text]:
    """The texts of the first messages."""
    return [text for number in range(leading) for text in texts_of(said[number], number, str(said[number].get("role")))]


def _takes(message: Mapping[str, Any]) -> bool:
    """Whether a block can be appended to a message."""
    return isinstance(message.get("content"), str | list)
