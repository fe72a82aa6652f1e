"""Token ids of conversations, put together from those of their turns: a turn costs its new messages only.

Works for templates that print each message by itself (``template_proof``), and where an added token stands in front of
each message, at which the tokenizer cuts the text in any case.
"""

import json
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from xxhash import xxh3_128_digest

from gateway.core.bounded_cache import BoundedCache
from gateway.core.errors import TokenizerUnavailable
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
        before: Digest of the conversation in front of them; None: they are its beginning.
        ids: Their token ids.
    """

    before: bytes | None
    ids: bytes


class MessageTokens:
    """Encodes conversations of messages that have a role and a text and nothing else. Thread-safe.

    Keeps digests of the messages, not the messages.

    Args:
        render: Renders messages, with the generation prompt or without. The template prints each message by itself.
        encode: Token ids of a text, without start or end tokens.
        boundaries: Texts of added tokens; see ``boundaries``.
        max_bytes: Memory of the cache.

    Raises:
        TokenizerUnavailable: the template refuses a conversation, or prints no boundary in front of a message.
    """

    def __init__(
        self,
        render: Callable[[Sequence[Any], bool], str],
        encode: Callable[[str], bytes],
        boundaries: Sequence[str],
        max_bytes: int,
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
                parts = [self._encode(self._render(messages[:1], False))]
                self._keep(digests[0], _KnownTurn(None, parts[0]))
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
                before = xxh3_128_digest(before + role + xxh3_128_digest(text.encode(), seed), seed)
                digests.append(before)
        except (KeyError, TypeError, UnicodeEncodeError):
            return ()  # not an object with one of the roles and a text, or half a character
        return digests

    def _look_up(self, digests: Sequence[bytes]) -> tuple[int, list[bytes]]:
        """How many messages at the beginning of a conversation are known, and their token ids."""
        with self._lock:
            for known in range(len(digests), 0, -1):
                parts = []
                before: bytes | None = digests[known - 1]
                while before is not None and (turn := self._turns.get(before)) is not None:
                    parts.append(turn.ids)
                    before = turn.before
                if before is None:
                    return known, parts[::-1]
        return 0, []

    def _keep(self, digest: bytes, turn: _KnownTurn) -> None:
        weight = len(turn.ids) + _TURN_BYTES
        if weight <= self._max_turn:
            with self._lock:
                self._turns.put(digest, turn, weight=weight)

    def _encode_behind(self, messages: Sequence[Any], *, generation_prompt: bool = False) -> bytes:
        """Token ids of messages, or of the generation prompt, behind a first message."""
        behind = self._render([_FIRST, *messages], generation_prompt)[self._before :]
        if behind and not behind.startswith(self._boundaries):
            raise TokenizerUnavailable("a message does not begin with an added token")
        return self._encode(behind)


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
