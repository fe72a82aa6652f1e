"""Prompts to token ids.

A ``ChatRequest`` comes in; a ``TokenizedPrompt`` goes out: from the local tokenizer and chat template, else from the
engine, else estimated from the text. Start with ``encoder.Encoder``; ``block_hashes`` makes block chains of token ids.
The package exports nothing, so that the explaining process loads ``block_hashes`` without the tokenizers.
"""
