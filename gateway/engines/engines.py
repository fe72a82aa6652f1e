"""Entry points for all engines: metrics, usage, event sources and streams; the kind of engine; the flags it needs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gateway.core.engine_facts import Advice, EngineFacts, EngineKind
from gateway.core.kv_events import EventSource
from gateway.core.outcome import Usage
from gateway.core.prompt import ContentFormat
from gateway.engines import sglang, vllm
from gateway.engines.samples import Samples, is_count, read_samples
from gateway.engines.sglang_prompts import SglangRules, ToolForm, tool_form
from gateway.engines.vllm_prompts import VllmRules


class EngineModule(Protocol):
    """What a module of this package says about one engine, such as ``vllm``."""

    @property
    def METRICS(self) -> Sequence[str]:  # noqa: N802 - the name of a module's constant
        """Names of the metrics that it reads; an engine is recognized by any of them."""
        ...

    @property
    def EVENT_SOURCES_PATH(self) -> str:  # noqa: N802
        """Path of the document that lists the engine's KV event sources."""
        ...

    @property
    def ADVICE(self) -> Advice:  # noqa: N802
        """The flags that it should run with."""
        ...

    def read_facts(self, samples: Samples, started_at: float | None) -> EngineFacts:
        """Facts of one scrape."""
        ...

    def event_sources(self, document: Any, host: str) -> Sequence[EventSource]:
        """See ``engines.event_sources``."""
        ...


_ENGINES: Mapping[EngineKind, EngineModule] = {EngineKind.VLLM: vllm, EngineKind.SGLANG: sglang}


def advice(kind: EngineKind | None) -> Advice:
    """The advice for an engine; for an unknown one, that of all engines."""
    if kind is not None:
        return _ENGINES[kind].ADVICE
    all_of_them = [engine.ADVICE for engine in _ENGINES.values()]
    return Advice(
        prefix_caching=" or ".join(each.prefix_caching for each in all_of_them),
        usage_details=" or ".join(each.usage_details for each in all_of_them),
        metrics=" or ".join(each.metrics for each in all_of_them),
        events=" or ".join(each.events for each in all_of_them),
    )


def payloads(stream: bytes) -> list[bytes]:
    """The data of every event of an SSE stream, without the end mark."""
    return [
        payload
        for line in stream.removeprefix(b"\xef\xbb\xbf").splitlines()
        if line.startswith(b"data:") and (payload := line[5:].strip()) != b"[DONE]"
    ]


_STARTED_AT = "process_start_time_seconds"
"""As every Prometheus client library exports it."""

_LATEST_START = 2**33
"""Unix time; in the year 2242."""

_METRICS = (*(name for engine in _ENGINES.values() for name in engine.METRICS), _STARTED_AT)


def parse_metrics(text: str) -> EngineFacts:
    """Facts of an engine's ``/metrics``; all None for an unknown engine."""
    samples = read_samples(text, _METRICS)
    started = samples.get(_STARTED_AT)
    started_at = started[0].value if started and 0 <= started[0].value <= _LATEST_START else None
    for engine in _ENGINES.values():
        if any(name in samples for name in engine.METRICS):
            return engine.read_facts(samples, started_at)
    return EngineFacts()


def event_sources_path(kind: EngineKind) -> str:
    """Path of the document for ``event_sources``."""
    return _ENGINES[kind].EVENT_SOURCES_PATH


def event_sources(kind: EngineKind, document: Any, host: str) -> Sequence[EventSource]:
    """The KV event sources that an engine reports, by rank; empty if it publishes none.

    Args:
        kind: Kind of engine.
        document: The answer to ``GET`` of ``event_sources_path``, parsed.
        host: Host name or address of the replica, without port.
    """
    return _ENGINES[kind].event_sources(document, host)


def parse_usage(usage: Any) -> Usage | None:
    """The ``usage`` object of a response; None if it is malformed or a count is out of range.

    ``prompt_tokens_details.cached_tokens`` is there only if vLLM runs with ``--enable-prompt-tokens-details``, SGLang
    with ``--enable-cache-report``.
    """
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details")
    prompt = usage.get("prompt_tokens")
    completion = usage.get("completion_tokens")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if completion is None:
        completion = 0
    if not is_count(prompt) or not is_count(completion):
        return None
    if cached is not None and not (is_count(cached) and cached <= prompt):
        return None
    return Usage(prompt, completion, cached)


ChatRules = VllmRules | SglangRules
"""How an engine makes the input of its chat template of a request; see ``VllmRules``."""


def chat_rules(kind: EngineKind | None, version: str, *, excludes_tools: bool = False) -> ChatRules:
    """The rules of an engine; of an unknown one those of vLLM.

    Args:
        kind: Kind of engine.
        version: Its release, as it reports it; empty if unknown.
        excludes_tools: See ``VllmRules``.
    """
    sglang_rules = SglangRules(tool_form=tool_form(version))
    return sglang_rules if kind is EngineKind.SGLANG else VllmRules(excludes_tools=excludes_tools)


def other_rules(rules: ChatRules) -> Sequence[ChatRules]:
    """Rules that an engine may follow instead: first the same engine's, then others', then another content format."""
    given = rules.content_format
    vllm_rules = [VllmRules(given, excludes) for excludes in (False, True)]
    sglang_rules = [SglangRules(given, form) for form in ToolForm]
    same, others = (vllm_rules, sglang_rules) if rules.engine is EngineKind.VLLM else (sglang_rules, vllm_rules)
    formats: Sequence[ContentFormat] = ("string", "openai")
    found = [*same, *others, *(replace(rules, content_format=each) for each in formats)]
    return [each for each in found if each != rules]
