"""Checks that need generation requests: usage details, reuse, salts, the prompt's length.

Four requests to each replica, one after the other, each with one token of output. The prompt is longer than what
external caches keep as one chunk (LMCache: 256 tokens by default), which hold nothing of a shorter one. It begins with
a random word, so that nothing of it is cached before. Between the last two requests the cache is cleared where that is
possible: hits of the GPU's blocks hide those of an external cache.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.core.engine_facts import EngineKind
from gateway.core.prompt import TOKEN_BYTES
from gateway.core.request import Endpoint
from gateway.engines import parse_usage
from gateway.evaluation.doctor.doctor_finding import DoctorFinding, Severity
from gateway.evaluation.doctor.engine_checks import usage_details_off
from gateway.evaluation.doctor.engine_probe import EngineAccess, EngineProbe, turned_away
from gateway.evaluation.doctor.token_checks import TokenProbe, engine_rules, local_tokens
from gateway.http_client import TransportError
from gateway.tokenize.local import LocalEncoder

_UNKNOWN_BLOCK = 16
_MOST_WORDS = 6000
"""Longest prompt in words, each at least a token; hybrid models have blocks of up to some thousand tokens."""

PROBE_WORDS = 4096

_SALTS = ("doctor-one", "doctor-one", "doctor-two")
_LAST_SALT = "doctor-three"
"""Another one than those before, whose blocks an external cache may hold by right."""


@dataclass(frozen=True, slots=True)
class GenerationOutcome:
    """What the requests of one replica showed.

    Attributes:
        findings: The mistakes.
        unchecked: Why something could not be checked.
        shown: What was shown to be right.
    """

    findings: Sequence[DoctorFinding] = ()
    unchecked: Sequence[str] = ()
    shown: Sequence[str] = ()


async def generation_outcome(
    access: EngineAccess,
    probe: EngineProbe,
    encoder: LocalEncoder | None,
    *,
    salted: bool,
    timeout_seconds: float,
    words: int = PROBE_WORDS,
) -> GenerationOutcome:
    """Send the requests to one replica, and judge its answers.

    Args:
        access: The replica.
        probe: What it says of itself; it was reached.
        encoder: The gateway's tokenizer; None if there is none in this process.
        salted: Whether every request gets a salt: where tenants are isolated or prefixes expire.
        timeout_seconds: Limit of each request.
        words: Length of the prompt, if it holds two blocks and the model's context allows it.
    """
    replica = probe.replica
    least = 2 * (probe.facts.block_size or _UNKNOWN_BLOCK) + 16
    most = min(_MOST_WORDS, (probe.context_limit or _MOST_WORDS) * 3 // 4)
    if least > most:
        problem = f"salts and reuse, because two blocks of {probe.facts.block_size} tokens are too long for a probe"
        return GenerationOutcome(unchecked=[f"{replica.where}: {problem}"])
    words = max(least, min(words, most))
    # Words of one letter: about a token each, at most two.
    fields = {
        "messages": [{"role": "user", "content": f"{secrets.token_hex(8)} " + " ".join(["a b c d"] * (words // 4))}]
    }
    rank = 0 if len(probe.facts.ranks) > 1 else None
    usages = []
    cleared = False
    for number, salt in enumerate((*_SALTS, _LAST_SALT)):
        if salt == _LAST_SALT and not (cleared := await _clear(access, probe)):
            break
        request = {"model": replica.model.id, "max_tokens": 1, "temperature": 0, "cache_salt": salt, **fields}
        try:
            status, answer = await access.post(str(Endpoint.CHAT), request, timeout_seconds=timeout_seconds, rank=rank)
            if status in (400, 422) and not number:
                return await _refused(access, probe, request, status, timeout_seconds, salted=salted)
        except TransportError as failure:
            return GenerationOutcome([_fails(probe, str(failure))])
        if status != 200:
            return GenerationOutcome([turned_away(replica, status) or _fails(probe, f"status {status}")])
        usages.append(parse_usage(answer.get("usage")) if isinstance(answer, dict) else None)
    if any(usage is None for usage in usages):
        return GenerationOutcome([_fails(probe, "an answer without usage")])
    cached = [None if usage is None else usage.cached_tokens for usage in usages]
    findings = list(_judged(probe, cached, salted=salted))
    prompt_tokens = usages[0].prompt_tokens if usages[0] is not None else 0
    if encoder is not None and (other := _other_length(probe, encoder, fields, prompt_tokens)):
        findings.append(other)
    unchecked, shown = [], []
    if not any(cached) and not any(each.name == "prefix-not-reused" for each in findings):
        unchecked.append(f"{replica.where}: whether salts keep prefixes apart, because no answer reports cached tokens")
    elif cached[1] and not any(cached[2:]):
        said = f"of a prompt of {words} words, {cached[1]} tokens are reused with the same salt, none with another"
        shown.append(f"{replica.where}: isolation holds: {said}{', nor once its cache is cleared' if cleared else ''}")
    if probe.external and not cleared:
        # Hits of the GPU's blocks hide those of the external cache.
        said = f"whether {probe.external} keeps salts apart once the GPU has lost a prefix, because its cache cannot be"
        unchecked.append(
            f"{replica.where}: {said} cleared (vLLM: set VLLM_SERVER_DEV_MODE=1; SGLang: while it is idle)"
        )
    return GenerationOutcome(findings, unchecked, shown)


async def _clear(access: EngineAccess, probe: EngineProbe) -> bool:
    """Clear the cache of the GPU. vLLM offers that in development mode only, and SGLang always: it is not asked to lose
    a cache that may be in use, unless there is another one to be judged."""
    if probe.facts.kind is EngineKind.SGLANG and not probe.external:
        return False
    path = "/flush_cache" if probe.facts.kind is EngineKind.SGLANG else "/reset_prefix_cache"
    try:
        status, answer = await access.post(path, {})
    except TransportError:
        return False
    return status == 200 and not (isinstance(answer, dict) and answer.get("success") is False)


def _judged(probe: EngineProbe, cached: Sequence[int | None], *, salted: bool) -> Sequence[DoctorFinding]:
    """The findings of three answers: cold, the same again, the same with another salt."""
    where, caching = probe.replica.where, probe.facts.prefix_caching
    again = cached[1]
    other_salt = max(each or 0 for each in cached[2:])
    if other_salt:
        return [
            DoctorFinding(
                "salt-ignored",
                Severity.ERROR if salted else Severity.WARNING,
                where,
                f"A prompt with another cache_salt reuses {other_salt} tokens: isolation does not hold, so "
                "tenants share their cached prefixes, one can measure what another has sent, and no prefix expires.",
                "run a release of the engine that knows cache_salt; or, if all tenants may share for ever, set "
                "spaces.isolation: none without times",
            )
        ]
    # SGLang leaves a count of zero out, which is no evidence; vLLM with the flag reports it.
    silent = all(each is None for each in cached)
    known = probe.server is not None and probe.server.usage_details is not None
    if silent and not known and (caching is not False or probe.facts.kind is EngineKind.VLLM):
        return [usage_details_off(probe)]
    reports = not silent or (probe.server is not None and probe.server.usage_details is True)
    if caching and reports and not again and (again is not None or probe.facts.kind is EngineKind.SGLANG):
        return [
            DoctorFinding(
                "prefix-not-reused",
                Severity.ERROR,
                where,
                "The same prompt sent twice is computed twice, although prefix caching is on.",
                "look into the engine's log for why prefix caching is not in effect for this model",
            )
        ]
    return []


def _other_length(
    probe: EngineProbe, encoder: LocalEncoder, fields: Mapping[str, Any], prompt_tokens: int
) -> DoctorFinding | None:
    """The prompt has another length at the engine: for engines that do not tell the tokens of a conversation."""
    own = local_tokens(encoder, TokenProbe("", Endpoint.CHAT, fields), engine_rules(probe))
    if own is None or len(own) // TOKEN_BYTES == prompt_tokens:
        return None
    replica = probe.replica
    return DoctorFinding(
        "prompt-length-differs",
        Severity.ERROR,
        replica.where,
        f"A prompt has {len(own) // TOKEN_BYTES} tokens here and {prompt_tokens} at the engine: tokenizer or chat "
        "template are not the engine's, so predictions are wrong.",
        f"set {replica.model_path}.tokenizer and chat_template to what the engine was started with",
    )


async def _refused(
    access: EngineAccess,
    probe: EngineProbe,
    request: dict[str, Any],
    status: int,
    timeout_seconds: float,
    *,
    salted: bool,
) -> GenerationOutcome:
    """A refused request: because of its salt if it is answered without one."""
    plain = {name: value for name, value in request.items() if name != "cache_salt"}
    try:
        without, _ = await access.post(str(Endpoint.CHAT), plain, timeout_seconds=timeout_seconds)
    except TransportError as failure:
        return GenerationOutcome([_fails(probe, str(failure))])
    if without != 200:
        return GenerationOutcome([_fails(probe, f"status {without}")])
    refused = DoctorFinding(
        "salt-refused",
        Severity.ERROR,
        probe.replica.where,
        f"The engine answers {status} to requests with a cache_salt"
        + (", as every request has one where tenants are isolated or prefixes expire." if salted else "."),
        "run a release of the engine that knows cache_salt; or, if all tenants may share for ever, set "
        "spaces.isolation: none without times",
    )
    return GenerationOutcome([refused] if salted else [])


def _fails(probe: EngineProbe, problem: str) -> DoctorFinding:
    return DoctorFinding(
        "generation-fails",
        Severity.ERROR,
        probe.replica.where,
        f"A chat request of one token fails: {problem}.",
        "look into the engine's log; a model without a chat template needs --chat-template",
    )
