"""Chat bodies of any length, whose tokens the mock engine reports exactly."""

import json
import random

from benchmarks.overhead.bodies import WORDS
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.tokenize.load_tokenizer import load_local

BLOCK_SIZE = 16

_WORDS_PER_TOKEN = 0.715
_MESSAGE_TOKENS = 250
_encoder = load_local("builtin:demo", cache_mib=0)


def chat(rng: random.Random, tokens: int, system: str = "") -> list[dict[str, str]]:
    """A conversation of about so many tokens: a system prompt, turns of two messages, and a last question."""
    system = system or words(rng, tokens // 4)
    messages = [{"role": "system", "content": system}]
    left = tokens - tokens // 4 - 20
    while left > _MESSAGE_TOKENS:
        for role, share in (("user", 5), ("assistant", 1)):
            messages.append({"role": role, "content": words(rng, _MESSAGE_TOKENS // share)})
            left -= _MESSAGE_TOKENS // share
    return [*messages, {"role": "user", "content": words(rng, max(left, 10))}]


def words(rng: random.Random, tokens: int) -> str:
    """Random words of about so many tokens."""
    return " ".join(rng.choices(WORDS, k=max(int(tokens * _WORDS_PER_TOKEN), 1)))


def body(messages: list[dict[str, str]], *, warm: bool, stream: bool = False) -> str:
    """A request, with the tokens that the engine is to report: of a warm one all but the last block are cached."""
    tokens = count_tokens(messages)
    cached = (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE if warm else 0
    fields = {"model": "m", "messages": messages, "max_tokens": 8, "stream": stream}
    return json.dumps({**fields, "stop_token_ids": [tokens, cached]})


def count_tokens(messages: list[dict[str, str]]) -> int:
    """Prompt tokens of a conversation."""
    return len(_encoder.encode(Endpoint.CHAT, {"messages": messages})[0]) // TOKEN_BYTES
