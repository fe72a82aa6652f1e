"""``dynamic-suffix``: moves varying values out of the leading messages into a context block behind the last message.

Each value is replaced by a constant pointer. The blocks of earlier turns are put back in later turns, so that the
conversation stays a prefix of its next turn. A turn is stored as the list of the ids of all blocks in its prompt, under
the key of the conversation up to its last message (``keys``); the blocks are stored by id. So conversations with the
same beginning share entries only up to the first message in which they differ.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from gateway.canon.rule import NOTHING, Detected, Edit, Fields, RuleContext, applied
from gateway.canon.rules.dynamic.movable_pieces import MovablePiece
from gateway.canon.rules.dynamic.search import Search
from gateway.canon.texts import BLOCK_ROLES, Text, leading_messages, messages, texts_of
from gateway.core.canonical import RuleName
from gateway.core.json_edit import Path

if TYPE_CHECKING:
    from gateway.config.canon_settings import DynamicSuffixSettings

_NUMBER = "{number}"
_DIGITS = "([0-9]{1,9})"


class BlockForm:
    """Format of pointers and context blocks.

    Args:
        settings: Pointer, opening and closing line.
    """

    def __init__(self, settings: "DynamicSuffixSettings") -> None:
        front, behind = settings.pointer.split(_NUMBER)
        self._front, self._behind = front, behind
        self._opening, self._closing = settings.opening, settings.closing
        pattern = re.escape(front) + _DIGITS + re.escape(behind)
        # Without delimiters a pointer must not match a part of a longer number.
        self.pattern = re.compile(("" if front else "(?<![0-9])") + pattern + ("" if behind else "(?![0-9])"))
        self._entry = re.compile(rf"^{pattern} ", re.MULTILINE)

    def pointer(self, number: int) -> str:
        """The pointer that replaces a value."""
        return f"{self._front}{number}{self._behind}"

    def largest(self, texts: Iterable[str]) -> int:
        """Largest pointer number in some texts; 0 if there is none."""
        # Most texts do not even have the first character, which is found many times faster than all of them.
        some = [text for text in texts if self._front[:1] in text and self._front in text]
        return max((int(number) for text in some for number in self.pattern.findall(text)), default=0)

    def is_in(self, text: str) -> bool:
        """Whether a text contains something like a part of a block."""
        if self._opening in text:
            return True
        if not self._front:
            return self._entry.search(text) is not None
        at = text.find(self._front)  # many times faster than matching every line
        while at >= 0:
            if (not at or text[at - 1] == "\n") and self._entry.match(text, at):
                return True
            at = text.find(self._front, at + 1)
        return False

    def written(self, values: Mapping[int, str]) -> str:
        """Encode a block of values by their numbers."""
        lines = [f"{self.pointer(number)} {value}" for number, value in sorted(values.items())]
        return "\n".join((self._opening, *lines, self._closing))

    def read(self, block: str, above: int) -> dict[int, str]:
        """Decode a block into its values by number.

        Args:
            block: A block; one in another format may yield no values.
            above: Largest number of the client's own pointers, which values may contain.
        """
        inside = block.removeprefix(self._opening + "\n").removesuffix("\n" + self._closing)
        found: list[tuple[int, int, int]] = []
        for match in self._entry.finditer(inside):
            number = int(match[1])
            if number > max(above, found[-1][0] if found else 0):
                found.append((number, match.start(), match.end()))
        if not found:
            return {}
        ends = [start - 1 for _, start, _ in found[1:]] + [len(inside)]
        return {number: inside[start:end] for (number, _, start), end in zip(found, ends, strict=True)}


_KEY_BYTES = 16
_LENGTH_BYTES = 8
_CACHE_CONTROL = "cache_control"


def keys(
    messages: Sequence[Mapping[str, Any]], owner: str, lasting: Sequence[tuple[str, str]], upto: int
) -> Iterator[bytes]:
    """Key of the conversation up to each message, from the first to the one with index ``upto``.

    Args:
        messages: The client's messages, with pointers in the leading ones.
        owner: Owner of the conversation.
        lasting: Names and values that are constant within a conversation, and identify it.
        upto: Index of the last message.

    Raises:
        ValueError, RecursionError: a message cannot be encoded as JSON.
    """
    running = hashlib.blake2b(digest_size=_KEY_BYTES)
    _feed(running, _encoded([owner, *lasting]))
    for message in messages[: upto + 1]:
        _feed(running, _encoded(_unmarked(message)))
        yield running.digest()


def _feed(running: "hashlib.blake2b", piece: bytes) -> None:
    running.update(len(piece).to_bytes(_LENGTH_BYTES, "little"))
    running.update(piece)


def _encoded(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError):
        # Lone surrogates, and integers beyond 64 bits.
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _unmarked(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message without ``cache_control``, which clients move from turn to turn."""
    content = message.get("content")
    if isinstance(content, list) and any(isinstance(part, dict) and _CACHE_CONTROL in part for part in content):
        message = {**message, "content": [_without(part) if isinstance(part, dict) else part for part in content]}
    return _without(message) if _CACHE_CONTROL in message else message


def _without(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name != _CACHE_CONTROL}


_ID_BYTES = 8
_NONE = "-"


@dataclass(frozen=True, slots=True)
class EarlierBlocks:
    """Blocks of earlier turns.

    Attributes:
        blocks: Blocks by the index of the message to which they were appended.
        is_whole: False if blocks are known to be missing.
    """

    blocks: Mapping[int, str]
    is_whole: bool


def recalled(
    chat: Sequence[Mapping[str, Any]], takers: Sequence[int], known: Sequence[bytes], given: RuleContext
) -> EarlierBlocks:
    """The blocks of earlier turns.

    Args:
        chat: The messages.
        takers: Indexes of messages to which blocks may be appended, without the last one.
        known: Key of the conversation up to each message.
        given: Looks up stored blocks.
    """
    for count in range(len(takers), 0, -1):
        entry = given.recall(known[takers[count - 1]])
        ids = entry.split(" ") if entry else []
        if len(ids) != count:
            continue
        found = {number: given.recall(_id(each)) for number, each in zip(takers, ids, strict=False) if each != _NONE}
        blocks = {number: block for number, block in found.items() if block is not None}
        return EarlierBlocks(blocks, len(blocks) == len(found) and not _any_answered(chat, takers[count:]))
    return EarlierBlocks({}, not _any_answered(chat, takers))


def remembered(
    takers: Sequence[int], blocks: Mapping[int, str], known: Sequence[bytes], owner: str
) -> Mapping[bytes, str]:
    """The entries to store for a turn: every block by its id, and the list of ids.

    Args:
        takers: Indexes of messages to which blocks may be appended, including the last one.
        blocks: Blocks by index of the message.
        known: See ``recalled``.
        owner: Owner of the conversation; part of the ids, so that other owners cannot look up its blocks.
    """
    ids = {number: _name(block, owner) for number, block in blocks.items()}
    entries = {_id(ids[number]): block for number, block in blocks.items()}
    return entries | {known[takers[-1]]: " ".join(ids.get(number, _NONE) for number in takers)}


def _name(block: str, owner: str) -> str:
    named = f"{owner}\0{block}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=_ID_BYTES).hexdigest()


def _id(name: str) -> bytes:
    """Storage key of a block; differs in length from keys of conversations."""
    return b"block:" + name.encode("ascii", "replace")


def _any_answered(chat: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> bool:
    """Whether one of the messages was the last one of a turn, that is, was answered."""
    return any(chat[number + 1].get("role") == "assistant" for number in numbers)


_GAP = "\n\n"
_APPENDING = frozenset({"added", "restored"})
_BLANKS, _INVISIBLE = " \t\r\n", " \t\r\n\u200b\u2060\ufeff"


class DynamicSuffix:
    """Moves varying values. Stateless except for a cache of findings.

    Args:
        settings: Kinds and slots to move, and format of the block.
    """

    name: ClassVar[RuleName] = RuleName.DYNAMIC_SUFFIX

    def __init__(self, settings: "DynamicSuffixSettings") -> None:
        self._form = BlockForm(settings)
        self._search = Search(settings, self._form.pattern)

    def detect(self, fields: Fields, given: RuleContext) -> Detected:
        """See ``Rule``. The edits move values and put back blocks of earlier turns."""
        leading = leading_messages(fields)
        chat = messages(fields)
        if not leading or leading == len(chat):
            return NOTHING
        texts = _leading_texts(chat, leading)
        below = self._form.largest(text.text for text in texts)
        found = self._found(texts, fields.get("model"), given, below)
        if not found:
            return NOTHING
        taker = next((n for n in range(len(chat) - 1, leading - 1, -1) if chat[n].get("role") in BLOCK_ROLES), None)
        if taker is None or not _takes(chat[taker]):
            return NOTHING
        moves, values = self._moves(found, below)
        lasting = [each for _, pieces in found for piece in pieces for each in piece.lasting]
        try:
            known = list(keys(messages(applied(fields, moves)), given.owner, lasting, taker))
        except (ValueError, RecursionError):
            return NOTHING
        return self._placed(chat, moves, values, known, given, leading=leading, taker=taker, below=below)

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
                pointer = piece.marked(self._form.pointer(number))
                summary = f"Varying values ({names}) are moved behind the last message; {pointer} replaces them."
                edits.append(Edit(self.name, "moved", text.path, values[number], pointer, piece.start, summary))
        return edits, values

    def _placed(
        self,
        chat: Sequence[Mapping[str, Any]],
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
        takers = [n for n in range(leading, taker + 1) if chat[n].get("role") in BLOCK_ROLES]
        past = recalled(chat, takers[:-1], known, given)
        blocks = {number: block for number, block in past.blocks.items() if _takes(chat[number])}
        # The model would believe a forged block in a message, unless the genuine one follows it.
        forged = self._last_forged(chat[leading : taker + 1]) + leading
        for number, block in sorted(blocks.items()):
            if number >= forged:
                latest |= self._form.read(block, below)
            edits.append(self._behind(chat, number, block, "restored", "The context of an earlier turn is put back."))
        changed = {number: value for number, value in values.items() if latest.get(number) != value}
        if changed:
            blocks[taker] = block = self._form.written(changed)
            edits.append(self._behind(chat, taker, block, "added", "The moved values are appended to this message."))
        return Detected(edits, remembered(takers, blocks, known, given.owner), context_lost=not past.is_whole)

    def _last_forged(self, chat: Sequence[Mapping[str, Any]]) -> int:
        """Index of the last message that contains something like a context block; 0 if there is none."""
        texts = ((n, text.text) for n, message in enumerate(chat) for text in texts_of(message, n, ""))
        return max((n for n, text in texts if self._form.is_in(text)), default=0)

    def _behind(self, chat: Sequence[Mapping[str, Any]], number: int, block: str, what: str, why: str) -> Edit:
        """The edit that appends a block to a message."""
        message = chat[number]
        content = message["content"]
        path: Path = ("messages", number, "content")
        if isinstance(content, list):
            return Edit(self.name, what, path, content, [*content, {"type": "text", "text": _GAP + block}], summary=why)
        seen = len(content)
        if message.get("role") == "user":
            seen = len(content.rstrip(_BLANKS)) if content.strip(_INVISIBLE) else 0
        if not content[:seen]:
            # There is no visible text to separate it from.
            return Edit(self.name, what, path, content, block, 0, why)
        # Trailing whitespace is removed: in front of the block it would end a line, where other rules remove it.
        return Edit(self.name, what, path, content[seen:], _GAP + block, seen, why)


def appended_blocks(edits: Iterable[Edit]) -> tuple[tuple[int, int], ...]:
    """The context blocks that some edits append: index of the message, and characters at the end of its text; sorted.

    A text of several parts counts one character between two of them.
    """
    found: list[tuple[int, int]] = []
    for edit in edits:
        if edit.rule is RuleName.DYNAMIC_SUFFIX and edit.what in _APPENDING:
            text = edit.after if isinstance(edit.after, str) else "\n" + edit.after[-1]["text"]
            found.append((int(edit.path[1]), len(text)))
    return tuple(sorted(found))


def _leading_texts(chat: Sequence[Mapping[str, Any]], leading: int) -> list[Text]:
    """The texts of the first messages."""
    return [text for number in range(leading) for text in texts_of(chat[number], number, str(chat[number].get("role")))]


def _takes(message: Mapping[str, Any]) -> bool:
    """Whether a block can be appended to a message."""
    return isinstance(message.get("content"), str | list)
