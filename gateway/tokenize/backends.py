"""Tokenizer backends: text in, little-endian u32 token ids out.

The reference is the library that the engine uses (Hugging Face tokenizers, tiktoken). fastokens encodes the same
vocabularies many times faster and caches segments, but it is another implementation, so it is used only if it encodes a
corpus equally.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import fastokens

if TYPE_CHECKING:
    import tiktoken
    import tokenizers


class TokenBackend(Protocol):
    """One tokenizer."""

    name: str

    def encode(self, text: str, add_special_tokens: bool) -> bytes:
        """Token ids of a text as little-endian u32; with the model's start and end tokens if asked."""
        ...


def pack(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian u32."""
    words = array("I", ids)
    return words.tobytes()


class HuggingFaceTokens:
    """The tokenizers library. ``encode_batch`` rather than ``encode``: it releases the interpreter lock."""

    name = "tokenizers"

    def __init__(self, tokenizer: "tokenizers.Tokenizer") -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, add_special_tokens: bool) -> bytes:
        """See ``TokenBackend``."""
        encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        return pack(encoding.ids)


class FastTokens:
    """fastokens with its segment cache: text between special tokens is encoded once."""

    name = "fastokens"

    def __init__(self, tokenizer_json: str, cache_bytes: int) -> None:
        self._tokenizer = fastokens.Tokenizer.from_json_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.enable_segment_cache(cache_bytes)

    def encode(self, text: str, add_special_tokens: bool) -> bytes:
        """See ``TokenBackend``."""
        ids: bytes = self._tokenizer.encode_batch_flat([text], add_special_tokens=add_special_tokens)[0]
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


class TiktokenTokens:
    """A tiktoken encoding. It has no start or end tokens of its own."""

    name = "tiktoken"

    def __init__(self, encoding: "tiktoken.Encoding") -> None:
        self._encoding = encoding

    def encode(self, text: str, add_special_tokens: bool) -> bytes:  # noqa: ARG002 - it has none to add
        """See ``TokenBackend``."""
        return pack(self._encoding.encode(text, allowed_special="all"))


class TransformersTokens:
    """A tokenizer that exists only as Python code in transformers."""

    name = "transformers"

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, add_special_tokens: bool) -> bytes:
        """See ``TokenBackend``."""
        return pack(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))


def proves_equal(candidate: TokenBackend, reference: TokenBackend, corpus: Sequence[str]) -> bool:
    """Whether two backends give the same ids for every text of a corpus, with and without special tokens."""
    return all(
        candidate.encode(text, special) == reference.encode(text, special)
        for text in corpus
        for special in (False, True)
    )


def decodes_equally(candidate: FastTokens, decode: Callable[[list[int]], str], corpus: Sequence[str]) -> bool:
    """Whether a backend decodes the tokens of every text of a corpus as a reference does: together, and one by one."""
    for text in corpus:
        ids = array("I", candidate.encode(text, add_special_tokens=True)).tolist()
        pieces = [ids, *([each] for each in ids)]
        if any(candidate.decode(piece) != decode(piece) for piece in pieces):
            return False
    return True
