"""A prompt as token ids, with the images and other media inside it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import msgspec

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
"""Types of content parts that are text."""

ContentFormat = Literal["string", "openai"]
"""What a chat template expects as ``content``: one string, or a list of parts it loops over."""

LaterSystem = Literal["in_place", "as_user", "joined"]
"""How a chat template takes a system message that is not the first one: it prints it where it stands, or does so with a
message of the user only, or with neither: then it has to be joined to a message."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One item, whose content is not in the token ids: these are placeholders.

    Attributes:
        offset: Position of its first placeholder in the prompt, in tokens.
        length: Placeholders it takes.
        identifier: The engine's hash of its content.
    """

    offset: int
    length: int
    identifier: str


TOKEN_BYTES = 4
"""Token ids travel as little-endian unsigned 32-bit words: what the fast tokenizers return and what is hashed."""


class TokenSource(StrEnum):
    """Where the token ids of a prompt come from, most trustworthy first."""

    LOCAL = "local"
    """The model's own tokenizer and chat template, in this process."""
    ENGINE_RENDER = "engine_render"
    """The engine's ``/v1/chat/completions/render`` (or its completions twin): exact by definition."""
    ENGINE_TOKENIZE = "engine_tokenize"
    """The engine's ``/tokenize``: nearly always exact."""
    TEXT = "text"
    """No tokenizer: pieces of the raw text are used as tokens. Sufficient for routing, not for counting."""


class TokenizedPrompt(msgspec.Struct, frozen=True, gc=False):
    """The token ids of a request.

    Attributes:
        parts: One entry per prompt, little-endian u32 ids. Chat has exactly one; ``/v1/completions`` may carry more.
        source: Where they come from. With ``TEXT`` the ids are placeholders.
        media: The items inside each prompt, by offset; empty when no prompt has any.
        variant: Set if equal ids do not imply equal blocks in an engine, because they are placeholders or hold unknown
            media: chains of different variants are never equal.
    """

    parts: tuple[bytes, ...]
    source: TokenSource
    media: tuple[tuple[MediaItem, ...], ...] = ()
    variant: str = ""

    @property
    def tokens(self) -> int:
        """Number of prompt tokens over all prompts (an estimate when the source is ``TEXT``)."""
        return sum(map(len, self.parts)) // TOKEN_BYTES
