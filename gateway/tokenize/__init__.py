"""Prompts to token ids.

A ``ChatRequest`` comes in; a ``TokenizedPrompt`` goes out: from the local tokenizer and chat template, else from the
engine, else estimated from the text. Start with ``encoder.Encoder``; ``block_hashes`` makes block chains of token ids.
"""

from gateway.tokenize.encoder import Encoder
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder
from gateway.tokenize.token_estimate import characters, least_tokens

__all__ = ["Encoder", "LocalEncoder", "characters", "least_tokens", "load_local"]
