"""Runs all checks against a configuration: replicas side by side, each request with a time limit."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from gateway.component_options import space_rules
from gateway.config.settings import ModelSettings, Settings
from gateway.core.engine_facts import EngineKind
from gateway.core.errors import ConfigInvalid, TokenizerUnavailable
from gateway.evaluation.doctor.doctor_finding import Diagnosis, DoctorFinding, Severity
from gateway.evaluation.doctor.engine_checks import engine_findings
from gateway.evaluation.doctor.engine_probe import EngineAccess, EngineProbe, ExaminedReplica, probe_engine
from gateway.evaluation.doctor.event_checks import event_findings
from gateway.evaluation.doctor.generation_checks import generation_outcome
from gateway.evaluation.doctor.lifetime_checks import lifetime_findings
from gateway.evaluation.doctor.prefix_checks import SharedPrefix, TokensOf, prefix_findings
from gateway.evaluation.doctor.replica_comparison import comparison_findings, template_findings
from gateway.evaluation.doctor.surroundings import discovered, port_findings, state_findings
from gateway.evaluation.doctor.token_checks import (
    TOKEN_PROBES,
    TokenProbe,
    engine_rules,
    engine_tokens,
    local_tokens,
    parity_findings,
    unavailable,
    untokenized,
)
from gateway.http_client import HttpClient
from gateway.tasks import in_daemon_thread
from gateway.tokenize.load_tokenizer import load_local
from gateway.tokenize.local import LocalEncoder
from gateway.warmup.document import read_prefixes

_AT_ONCE = 32
"""Replicas that are examined at the same time."""

_MOST_PREFIXES = 500
"""Declared prefixes whose tokens are counted."""

_GENERATION_TIMEOUTS = 6
"""A generation request waits behind those of clients: it may take so many times the limit of the others."""


@dataclass(frozen=True, slots=True)
class ExaminationOptions:
    """What is examined.

    Attributes:
        timeout_seconds: Limit of each request to an engine that computes nothing.
        generates: Whether generation requests are sent.
        own_ports: Whether the gateway's own ports and settings are checked.
        encoders: Tokenizers that are loaded already, by model; None: they are loaded here.
        requests: Example requests of applications.
        progress: Called with a few words whenever something else begins.
    """

    timeout_seconds: float = 5.0
    generates: bool = True
    own_ports: bool = True
    encoders: Mapping[str, LocalEncoder | None] | None = None
    requests: Sequence[SharedPrefix] = ()
    progress: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class _Examined:
    """The results of one replica."""

    probe: EngineProbe
    findings: list[DoctorFinding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    rendered: Sequence[bytes | None] = ()


async def examine(settings: Settings, options: ExaminationOptions) -> tuple[Diagnosis, Sequence[EngineProbe]]:
    """Run the checks; returns the result, and what the engines say of themselves.

    Args:
        settings: The configuration.
        options: What is examined.
    """
    client = HttpClient(options.timeout_seconds)
    try:
        return await _Examination(settings, options, client).run()
    finally:
        client.close()


class _Examination:
    """One run."""

    def __init__(self, settings: Settings, options: ExaminationOptions, client: HttpClient) -> None:
        self._settings = settings
        self._options = options
        self._client = client
        self._limit = asyncio.Semaphore(_AT_ONCE)
        self._diagnosis = Diagnosis()
        self._encoders: Mapping[str, LocalEncoder | None] = {}

    async def run(self) -> tuple[Diagnosis, Sequence[EngineProbe]]:
        """See ``examine``."""
        options, diagnosis = self._options, self._diagnosis
        replicas = await self._replicas()
        diagnosis.replicas = len(replicas)
        options.progress("loading tokenizers")
        await self._load_encoders()
        options.progress(f"asking {len(replicas)} replica{'' if len(replicas) == 1 else 's'}")
        examined = await asyncio.gather(*map(self._examined, replicas))
        for each in examined:
            diagnosis.findings += each.findings
            diagnosis.unchecked += each.unchecked
            diagnosis.shown += each.shown
        probes = [each.probe for each in examined]
        diagnosis.findings += comparison_findings(probes)
        diagnosis.findings += template_findings(
            [(each.probe, tuple(each.rendered)) for each in examined if each.rendered]
        )
        await self._examine_prefixes(examined)
        if options.own_ports:
            options.progress("trying ports")
            diagnosis.findings += await port_findings(self._settings, self._client, options.timeout_seconds)
        now = asyncio.get_running_loop().time()
        diagnosis.findings += await state_findings(self._settings.state, options.timeout_seconds, now)
        diagnosis.findings += lifetime_findings(self._settings)
        return diagnosis, probes

    async def _replicas(self) -> list[ExaminedReplica]:
        """The configured and the discovered replicas."""
        found: list[ExaminedReplica] = []
        for number, model in enumerate(self._settings.models):
            place = f"models[{number}]"
            found += [
                ExaminedReplica(model, place, f"{place}.replicas[{position}]", replica)
                for position, replica in enumerate(model.replicas)
            ]
            if model.discover is not None:
                self._options.progress(f"looking for replicas of {model.id}")
                listed, problem = await discovered(model, place, self._options.timeout_seconds)
                found += listed
                self._diagnosis.findings += problem
        return found

    async def _load_encoders(self) -> None:
        """The tokenizer of each model; None where only the engine has it, or where it cannot be loaded."""
        if self._options.encoders is not None:
            self._encoders = self._options.encoders
            return
        loaded: dict[str, LocalEncoder | None] = {}
        for number, model in enumerate(self._settings.models):
            loaded[model.id] = None
            if model.tokenizer == "engine":
                continue
            try:
                loaded[model.id] = await in_daemon_thread(partial(_loaded, model), name=f"tokenizer-{model.id}")
            except (TokenizerUnavailable, OSError, ValueError) as error:
                self._diagnosis.findings.append(unavailable(f"models[{number}]", model.tokenizer, error))
        self._encoders = loaded

    async def _examined(self, replica: ExaminedReplica) -> _Examined:
        timeout = self._options.timeout_seconds
        access = EngineAccess(self._client, replica.settings, timeout)
        encoder = self._encoders.get(replica.model.id)
        async with self._limit:
            probe = await probe_engine(access, replica)
            result = _Examined(probe, list(engine_findings(probe)))
            if not probe.reached or (probe.served is not None and replica.model.id not in probe.served):
                return result
            if probe.sources_problem:
                result.unchecked.append(f"{replica.where}: KV events, because {probe.sources_problem}")
            events = asyncio.ensure_future(event_findings(probe, timeout))
            try:
                result.rendered = [await engine_tokens(access, replica, each) for each in TOKEN_PROBES]
                if not any(result.rendered):
                    result.unchecked.append(f"{replica.where}: tokens, because it has neither …/render nor /tokenize")
                elif encoder is not None:
                    result.findings += parity_findings(replica, encoder, result.rendered, engine_rules(probe))
                if encoder is None and probe.facts.kind is EngineKind.SGLANG and not any(_chats(result.rendered)):
                    result.findings.append(untokenized(replica))
                if self._options.generates and not probe.asleep:
                    await self._generate(access, result)
            finally:
                result.findings += await events
        return result

    async def _generate(self, access: EngineAccess, result: _Examined) -> None:
        chats = _chats(result.rendered)
        # The length of the prompt shows less than its tokens.
        encoder = None if any(ids is not None for ids in chats) else self._encoders.get(result.probe.replica.model.id)
        salted = space_rules(self._settings).numbered
        limit = _GENERATION_TIMEOUTS * self._options.timeout_seconds
        outcome = await generation_outcome(access, result.probe, encoder, salted=salted, timeout_seconds=limit)
        if any(each.name == "generation-fails" for each in outcome.findings):
            # Too slow for the long prompt, or it has more than a token for each word.
            outcome = await generation_outcome(
                access, result.probe, encoder, salted=salted, timeout_seconds=limit, words=0
            )
        known = {each.name for each in result.findings}
        result.findings += [each for each in outcome.findings if each.name not in known]
        result.unchecked += outcome.unchecked
        result.shown += outcome.shown

    async def _examine_prefixes(self, examined: Sequence[_Examined]) -> None:
        prefixes = [*self._options.requests, *await asyncio.to_thread(self._declared)]
        if not prefixes:
            return
        self._options.progress("counting the tokens of shared prefixes")
        sizes: dict[str, int] = {}
        tokens_of: dict[str, TokensOf] = {}
        for each in examined:
            replica, size = each.probe.replica, each.probe.facts.block_size
            if each.probe.reached and size:
                model = replica.model.id
                sizes[model] = max(size, sizes.get(model, 0))
                access = EngineAccess(self._client, replica.settings, self._options.timeout_seconds)
                tokens_of[model] = partial(_tokens, self._encoders.get(model), access, replica)
        findings, unchecked = await prefix_findings(prefixes, tokens_of, sizes)
        self._diagnosis.findings += findings
        self._diagnosis.unchecked += unchecked

    def _declared(self) -> list[SharedPrefix]:
        file = self._settings.warm.file
        if file is None:
            return []
        try:
            declared = read_prefixes(file).declared
        except ConfigInvalid as invalid:
            problem = f"The declared prefixes cannot be read: {invalid.problems[0]}."
            self._diagnosis.findings.append(
                DoctorFinding("prefixes-unreadable", Severity.ERROR, "warm.file", problem, f"correct {file}")
            )
            return []
        if len(declared) > _MOST_PREFIXES:
            self._diagnosis.unchecked.append(f"{file}: declared prefixes behind the first {_MOST_PREFIXES}")
        return [
            SharedPrefix(f"{file}[{number}]", each.model, [(each.endpoint, each.fields)])
            for number, each in enumerate(declared[:_MOST_PREFIXES])
        ]


def _chats(rendered: Sequence[bytes | None]) -> list[bytes | None]:
    """The engine's token ids of those probes that are chat requests."""
    return [ids for ids, each in zip(rendered, TOKEN_PROBES, strict=True) if "messages" in each.fields]


def _loaded(model: ModelSettings) -> LocalEncoder:
    return load_local(
        model.tokenizer,
        chat_template=model.chat_template.read_text(encoding="utf-8") if model.chat_template else None,
        template_arguments=model.chat_template_kwargs,
        content_format=None if model.content_format == "auto" else model.content_format,
        cache_mib=0,
    )


async def _tokens(
    encoder: LocalEncoder | None, access: EngineAccess, replica: ExaminedReplica, probe: TokenProbe
) -> bytes | None:
    # In a thread: declared prefixes may be long, and a gateway may serve in this event loop.
    own = None if encoder is None else await asyncio.to_thread(local_tokens, encoder, probe)
    return await engine_tokens(access, replica, probe) if own is None else own
