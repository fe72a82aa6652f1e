"""What is common to the engines, and which engine it is."""

from collections.abc import Mapping
from typing import Any

from gateway.values.engine import EngineFacts
from gateway.values.outcome import Usage
from gateway.vendors import sglang, vllm


def parse_metrics(text: str) -> EngineFacts:
    """Facts of an engine's ``/metrics``; all None for an engine that is not known."""
    if vllm.PREFIX in text:
        return vllm.parse_metrics(text)
    if sglang.PREFIX in text:
        return sglang.parse_metrics(text)
    return EngineFacts()


def parse_usage(usage: Any) -> Usage | None:
    """The ``usage`` object of an answer; None if it is none.

    ``prompt_tokens_details.cached_tokens`` is there only if vLLM runs with ``--enable-prompt-tokens-details``, SGLang
    with ``--enable-cache-report``.
    """
    if not isinstance(usage, Mapping) or not isinstance(prompt := usage.get("prompt_tokens"), int):
        return None
    completion = usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion if isinstance(completion, int) else 0,
        cached_tokens=cached if isinstance(cached, int) else None,
    )
