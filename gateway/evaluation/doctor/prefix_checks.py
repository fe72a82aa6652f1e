"""Checks whether shared prefixes fill a block: declared prefixes, and prompts of applications given as examples."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core.request import Endpoint
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.evaluation.doctor.token_checks import TokenProbe
from gateway.explain.reference.overlap import common_tokens

TokensOf = Callable[[TokenProbe], Awaitable[bytes | None]]
"""Token ids of a prompt; None if they cannot be had."""

_MOST_PROMPTS = 64
"""Prompts of one prefix that are encoded."""

_ENDINGS = ("Good morning!", "7 x 8 = ?")
"""Last messages of two conversations that have nothing in common."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Prompts that should share their beginning.

    Attributes:
        where: Where they come from, such as ``prefixes.yaml[2]``.
        model: Their model.
        prompts: The requests, each with its API.
    """

    where: str
    model: str
    prompts: Sequence[tuple[Endpoint, Mapping[str, Any]]]


async def prefix_findings(
    prefixes: Iterable[SharedPrefix], tokens_of: Mapping[str, TokensOf], block_sizes: Mapping[str, int]
) -> tuple[Sequence[DoctorFinding], Sequence[str]]:
    """Prefixes that are shorter than a block of their model's engines; and which could not be checked, and why.

    Args:
        prefixes: The prefixes.
        tokens_of: Encodes prompts, by model.
        block_sizes: Largest block of a model's replicas in tokens, by model.
    """
    findings: list[DoctorFinding] = []
    unchecked: list[str] = []
    for prefix in prefixes:
        block, encode = block_sizes.get(prefix.model), tokens_of.get(prefix.model)
        if block is None or encode is None:
            unchecked.append(f"{prefix.where}: no replica of {prefix.model} says how large its blocks are")
            continue
        tokens = await shared_tokens(prefix, encode)
        if tokens is None:
            unchecked.append(f"{prefix.where}: neither the gateway nor the engine could count its tokens")
        elif tokens < block:
            findings.append(
                DoctorFinding(
                    "block-larger-than-prefix",
                    Severity.ERROR,
                    prefix.where,
                    f"The shared prefix has {tokens} tokens and a block of {prefix.model} has {block}: engines "
                    "reuse whole "
                    "blocks only, so nothing of it is ever reused.",
                    "put more shared text in front (instructions, tools, examples), or start the engine with a smaller "
                    "--block-size (SGLang: --page-size)",
                )
            )
    return findings, unchecked


async def shared_tokens(prefix: SharedPrefix, encode: TokensOf) -> int | None:
    """Tokens that all prompts have in common at their beginning; None if they cannot be encoded.

    A single conversation is compared with itself under other last messages of the user.
    """
    prompts = list(prefix.prompts[:_MOST_PROMPTS])
    if len(prompts) == 1:
        endpoint, fields = prompts[0]
        prompts = [(endpoint, each) for each in _continued(endpoint, fields)]
    encoded = await asyncio.gather(*(encode(TokenProbe("", endpoint, fields)) for endpoint, fields in prompts))
    known = [ids for ids in encoded if ids is not None]
    if len(known) < len(encoded):
        return None
    return min(common_tokens(known[0], ids) for ids in known)


def _continued(endpoint: Endpoint, fields: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """A prefix as the beginning of different prompts."""
    messages = fields.get("messages")
    if endpoint is not Endpoint.CHAT or not isinstance(messages, list):
        return [fields]
    last = messages[-1] if messages else None
    kept = messages[:-1] if isinstance(last, dict) and last.get("role") == "user" and len(messages) > 1 else messages
    if kept and isinstance(kept[-1], dict) and kept[-1].get("role") == "user":
        return [fields]
    return [{**fields, "messages": [*kept, {"role": "user", "content": ending}]} for ending in _ENDINGS]
