"""Prompt text to token ids: chat template, tokenizer, and what to do where there is none."""

from gateway.tokenize.encoder import Encoder
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder
from gateway.tokenize.token_estimate import characters, least_tokens

__all__ = ["Encoder", "LocalEncoder", "characters", "least_tokens", "load_local"]
