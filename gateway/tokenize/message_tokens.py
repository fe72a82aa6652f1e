"""Token ids of conversations, put together from those of their turns: a turn costs its new messages only.

Works for templates that print each message by itself (``template_proof``), and where an added token stands in front of
each message, at which the tokenizer cuts the text in any case.
"""

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from xxhash import xxh3_128_digest

from gateway.core.bounded_cache import BoundedCache
from gateway.core.errors import TokenizerUnavailable
from gateway.engines.vllm_prompts import without_billing_header
from gateway.tokenize.printed_content import Around, Render, around
from gateway.tokenize.template_proof import PLAIN_ROLES

_ROLE_TAGS = {role: role[:1].encode() for role in PLAIN_ROLES}
_FIRST = {"role": "user", "content": "x"}
_TURN_BYTES = 350
"""Memory of a turn besides its token ids."""
_LARGEST_SHARE = 16
"""Turns that would take more than this part of the cache are not kept."""


class _KnownTurn(NamedTuple):
    """One or more messages of a conversation, kept by the digest of the conversation up to their end.

    Attributes:
        before: Digest of the conversation in front of them; empty: they are its beginning.
        ids: Their token ids.
    """

    before: bytes
    ids: bytes


class MessageTokens:
    """Encodes conversations of messages that have a role and a text and nothing else. Thread-safe.

    Keeps digests of the messages, not the messages.

    Args:
        render: Renders messages, with the generation prompt or without. The template prints each message by itself.
        encode: Token ids of a text, without start or end tokens.
        boundaries: Texts of added tokens; see ``boundaries``.
        max_bytes: Memory of the cache.
        as_it_is: Whether the template prints a message's content as it is; see ``prints_content``. Then plain messages
            are put together without it.

    Raises:
        TokenizerUnavailable: the template refuses a conversation, or prints no boundary in front of a message.
    """

    def __init__(
        self,
        render: Render,
        encode: Callable[[str], bytes],
        boundaries: Sequence[str],
        max_bytes: int,
        *,
        as_it_is: bool = False,
    ) -> None:
        self._render = render
        self._encode = encode
        self._boundaries = tuple(boundaries)
        self._max_turn = max_bytes // _LARGEST_SHARE
        self._turns: BoundedCache[bytes, _KnownTurn] = BoundedCache(max_weight=max_bytes)
        self._seed = int.from_bytes(os.urandom(8), "little")  # so that no client can construct equal digests
        self._lock = threading.Lock()
        self._before = len(render([_FIRST], False))
        self._generation_prompt = self._encode_behind([], generation_prompt=True)
        self._around_first = _by_role(render, []) if as_it_is else {}
        self._around_others = _by_role(render, [_FIRST]) if as_it_is else {}

    @property
    def weight(self) -> int:
        """Estimated memory of the cache in bytes."""
        return self._turns.weight

    def encode(self, messages: Sequence[Any]) -> bytes | None:
        """Token ids of a conversation with the generation prompt; None if it has to be encoded as a whole."""
        digests = self._digests(messages)
        if not digests:
            return None
        known, parts = self._look_up(digests)
        try:
            if known == 0:
                # On its own, because other conversations begin with it, too.
                text = _printed(messages[:1], self._around_first)
                parts = [self._encode(self._render(messages[:1], False) if text is None else text)]
                self._keep(digests[0], _KnownTurn(b"", parts[0]))
                known = 1
            if known < len(messages):
                parts.append(self._encode_behind(messages[known:]))
                self._keep(digests[-1], _KnownTurn(digests[known - 1], parts[-1]))
        except TokenizerUnavailable:
            return None
        parts.append(self._generation_prompt)
        return b"".join(parts)

    def _digests(self, messages: Sequence[Any]) -> Sequence[bytes]:
        """Digest of the conversation up to each message; empty if a message has more than a role and a text."""
        digests = []
        seed, before = self._seed, b""
        try:
            for message in messages:
                role, text = _ROLE_TAGS[message["role"]], message["content"]
                if len(message) != 2 or type(text) is not str:
                    return ()
                before = xxh3_128_digest(before + role + text.encode(), seed)
                digests.append(before)
        except (KeyError, TypeError, UnicodeEncodeError):
            return ()  # not an object with one of the roles and a text, or half a character
        return digests

    def _look_up(self, digests: Sequence[bytes]) -> tuple[int, list[bytes]]:
        """How many messages at the beginning of a conversation are known, and their token ids."""
        get, beginning = self._turns.get, digests[0]
        with self._lock:
            first = get(beginning)
            if first is None:
                return 0, []  # all that is known behind it refers to it
            for known in range(len(digests), 1, -1):
                parts = []
                before = digests[known - 1]
                while before != beginning and (turn := get(before)) is not None:
                    parts.append(turn.ids)
                    before = turn.before
                if before == beginning:
                    return known, [first.ids, *reversed(parts)]
        return 1, [first.ids]

    def _keep(self, digest: bytes, turn: _KnownTurn) -> None:
        weight = len(turn.ids) + _TURN_BYTES
        if weight <= self._max_turn:
            with self._lock:
                self._turns.put(digest, turn, weight=weight)

    def _encode_behind(self, messages: Sequence[Any], *, generation_prompt: bool = False) -> bytes:
        """Token ids of messages, or of the generation prompt, behind a first message."""
        behind = None if generation_prompt else _printed(messages, self._around_others)
        if behind is None:
            behind = self._render([_FIRST, *messages], generation_prompt)[self._before :]
        if behind and not behind.startswith(self._boundaries):
            raise TokenizerUnavailable("a message does not begin with an added token")
        return self._encode(behind)


def _by_role(render: Render, in_front: Sequence[Any]) -> dict[str, Around]:
    found = {role: around(render, in_front, role) for role in PLAIN_ROLES}
    return {role: each for role, each in found.items() if each is not None}


def _printed(messages: Sequence[Any], by_role: Mapping[str, Around]) -> str | None:
    """The text of messages that have a role and a text and nothing else; None if the template has to print them."""
    parts: list[str] = []
    for message in messages:
        role, text = message["role"], message["content"]
        each = by_role.get(role)
        if each is None or (role == "system" and without_billing_header(text) is not text):
            return None
        parts += (each.before, text.strip() if each.is_trimmed else text, each.behind)
    return "".join(parts)


def boundaries(tokenizer_json: str) -> Sequence[str]:
    """Texts of added tokens at which a tokenizer cuts every text, independent of what is in front of them and behind.

    They are found before a text is normalized. None of them takes white space or another added token's beginning with
    it, and none is a part of another one.
    """
    added = json.loads(tokenizer_json).get("added_tokens") or []
    texts = [token["content"] for token in added]
    return [
        token["content"]
        for token in added
        if not (token["normalized"] or token["lstrip"] or token["single_word"] or token["content"][:1].isspace())
        and not any(_may_reach_into(text, token["content"]) for text in texts)
    ]


def _may_reach_into(text: str, boundary: str) -> bool:
    """Whether a text can begin in front of a boundary and end inside or behind it."""
    ends = (text[at:] for at in range(1, len(text)))
    return any(end.startswith(boundary) or boundary.startswith(end) for end in ends)
