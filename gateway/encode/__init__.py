"""Prompt text to token ids: chat template, tokenizer, and what to do where there is none."""

from gateway.encode.encoder import Encoder
from gateway.encode.estimate import characters, least_tokens
from gateway.encode.load import load_local
from gateway.encode.local import LocalEncoder

__all__ = ["Encoder", "LocalEncoder", "characters", "least_tokens", "load_local"]
