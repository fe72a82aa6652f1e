"""The models that are served: their tokenizers and templates, loaded at the start and again when they change."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog

from gateway.canon.token_counts import TokenCounts
from gateway.config.index_settings import EncodeSettings
from gateway.config.settings import ModelSettings
from gateway.context import ServedModel
from gateway.core.errors import TokenizerUnavailable
from gateway.core.ids import ModelId, TenantId
from gateway.core.portions import finished
from gateway.core.prompt import TOKEN_BYTES, LaterSystem
from gateway.core.request import Endpoint
from gateway.core.space import ModelVersion
from gateway.core.tenant import Tenant
from gateway.engines import ServerFacts
from gateway.fleet.engine_calls import EngineCalls
from gateway.fleet.fleet import Fleet
from gateway.fleet.prompt_rules import PromptRules
from gateway.routing.fair_threads import FairThreads
from gateway.spaces import template_version
from gateway.tasks import TaskGroupOwner, in_daemon_thread
from gateway.tokenize.encoder import Encoder, characters
from gateway.tokenize.engine_tokenizer import EngineTokenizer
from gateway.tokenize.load_tokenizer import folder_of, load_local
from gateway.tokenize.local import LocalEncoder

_MIB = 1024 * 1024

_OPERATOR = Tenant(TenantId(""))
"""The tenant of work that no client requested."""

_OF_ENGINE = "engine"
"""Replaces the hash of a tokenizer or template that only the engine has."""

OnVersion = Callable[[ModelVersion], None]

_log = structlog.get_logger("gateway.served_models")


class ServedModels(Mapping[ModelId, ServedModel]):
    """Every model by its id.

    Args:
        models: The configured models.
        settings: How prompts become tokens.
        isolated: Whether tenants are isolated: then tokens of whole texts are not cached, because a client could
            measure by timing that another tenant has sent a text.
        engines: Calls to the engines, for prompts that only they can encode.
        fleet: The replicas: what they tell of their models is part of a version.

    Attributes:
        present: The same models; a view that follows every change, and is read faster.
    """

    def __init__(
        self,
        models: Sequence[ModelSettings],
        settings: EncodeSettings,
        *,
        isolated: bool,
        engines: EngineCalls,
        fleet: Fleet,
    ) -> None:
        self._settings = settings
        self._isolated = isolated
        self._engines = engines
        self._fleet = fleet
        self._threads = FairThreads(settings.threads, settings.max_waiting_mib * _MIB)
        self._tasks = TaskGroupOwner()
        self._named: dict[ModelId, ServerFacts] = {}
        """What SGLang's replicas say of their tokenizer, for models whose tokenizer is the engine's."""
        self._on_version: OnVersion | None = None  # before ``load``
        self._configured = {ModelId(model.id): model for model in models}
        self._served = {ModelId(model.id): self._serve(model, None) for model in models}
        self.present: Mapping[ModelId, ServedModel] = MappingProxyType(self._served)

    def __getitem__(self, model: ModelId) -> ServedModel:
        return self._served[model]

    def __iter__(self) -> Iterator[ModelId]:
        return iter(self._served)

    def __len__(self) -> int:
        return len(self._served)

    async def load(self, on_version: OnVersion) -> None:
        """Load all tokenizers; returns when they are there.

        One that takes longer than ``encode.load_timeout_seconds`` (a hub that does not answer) is not waited for: the
        engine is asked for tokens until it is there.

        Args:
            on_version: Called with a model's version when its tokenizer and template are loaded.
        """
        self._on_version = on_version
        loading = {
            model: self._tasks.spawn(self._load(settings, on_version), name=f"tokenizer-{model}")
            for model, settings in self._configured.items()
        }
        await asyncio.wait(loading.values(), timeout=self._settings.load_timeout_seconds)
        for model, task in loading.items():
            if not task.done():
                _log.warning("tokenizer_late", model=model, instead="the engine is asked for every prompt's tokens")

    async def reload(self, models: Sequence[ModelSettings], on_version: OnVersion, *, isolated: bool) -> None:
        """Load all tokenizers and templates again; one that cannot be loaded leaves the model as it is.

        Args:
            models: The configured models.
            on_version: Called with a model's version when its tokenizer or template has changed.
            isolated: As in the constructor.
        """
        # The cache of texts belongs to the tokenizer, so a change of isolation needs a new one, too.
        reload_all, self._isolated = isolated != self._isolated, isolated
        for model in models:
            await self._reload(model, on_version, reload_all=reload_all)

    async def stop(self) -> None:
        """Cancel loading."""
        await self._tasks.cancel()
        self._threads.shutdown()

    def adapt(self, model: ModelId) -> None:
        """Take up what the replicas of a model tell of themselves."""
        if (rules := self._served[model].rules) is not None:
            rules.adapt()
        settings = self._configured[model]
        server = next((each.server for each in self._fleet.of(model) if each.server is not None), None)
        if settings.tokenizer == _OF_ENGINE and server is not None and model not in self._named:
            self._named[model] = server
            if self._on_version is not None:
                self._tasks.spawn(self._load(settings, self._on_version), name=f"tokenizer-{model}")

    def decoder(self, model: str, tokenizer_id: str) -> Callable[[list[int]], str] | None:
        """The function that decodes token ids to text.

        Args:
            model: Id of a model.
            tokenizer_id: Of which tokenizer the ids are.

        Returns:
            None if that tokenizer is not loaded in this process.
        """
        served = self._served.get(ModelId(model))
        local = None if served is None else served.encoder.local
        return local.decode if local is not None and local.tokenizer_id == tokenizer_id else None

    def token_counter(self, model: ModelId, tenant: str) -> Callable[[str], int] | None:
        """See ``ModelTexts``."""
        counts = self._served[model].token_counts
        return None if counts is None else counts.counter(tenant)

    def context_limit(self, model: ModelId) -> int:
        """See ``ModelTexts``."""
        return self._fleet.context_limit(model)

    def later_system(self, model: ModelId) -> LaterSystem:
        """See ``ModelTexts``."""
        local = self._served[model].encoder.local
        return "joined" if local is None else local.later_system

    async def count_tokens(self, model: ModelId, endpoint: Endpoint, fields: Mapping[str, Any]) -> int | None:
        """Prompt tokens of an operator's request; None without a tokenizer in this process."""
        local = self._served[model].encoder.local
        if local is None:
            return None
        try:
            parts = await self._threads.run(
                _OPERATOR, finished(characters(endpoint, fields)), local.encode, endpoint, fields
            )
        except Exception:  # noqa: BLE001 - as in ``Encoder``: the engine judges what cannot be encoded here
            return None
        return sum(map(len, parts)) // TOKEN_BYTES

    @property
    def threads(self) -> FairThreads:
        """Threads for work on long texts, shared fairly between tenants."""
        return self._threads

    async def _load(self, model: ModelSettings, on_version: OnVersion) -> None:
        local = await self._loaded(model, instead="the engine is asked for every prompt's tokens")
        if self._configured[ModelId(model.id)] is not model:
            return  # a reload meanwhile has loaded it
        if local is not None:
            self._served[ModelId(model.id)] = self._serve(model, local)
        if local is not None or model.tokenizer == _OF_ENGINE:
            on_version(self._served[ModelId(model.id)].version())

    async def _reload(self, model: ModelSettings, on_version: OnVersion, *, reload_all: bool) -> None:
        model_id = ModelId(model.id)
        self._configured[model_id] = model
        local = await self._loaded(model, instead="the tokenizer and the template loaded before stay in use")
        if local is None and model.tokenizer != _OF_ENGINE:
            return
        before = self._served[model_id].version()
        served = self._serve(model, local)
        after = served.version()
        if before == after and not reload_all:
            return  # keep the tokenizer with its cache
        self._served[model_id] = served
        if before == after:
            return
        _log.warning(
            "model_version_changed", model=model.id, version=after.template_version, before=before.template_version
        )
        on_version(after)

    async def _loaded(self, model: ModelSettings, instead: str) -> LocalEncoder | None:
        server = self._named.get(ModelId(model.id))
        if model.tokenizer == _OF_ENGINE and (server is None or server.tokenizer is None):
            _log.info("tokenizer_ready", model=model.id, tokenizer_backend=_OF_ENGINE)
            return None
        return await in_daemon_thread(lambda: self._load_local(model, server, instead), name=f"tokenizer-{model.id}")

    def _load_local(self, model: ModelSettings, server: ServerFacts | None, instead: str) -> LocalEncoder | None:
        """Load a model's tokenizer; that of the engine if ``server`` names files that this machine has."""
        tokenizer, template = model.tokenizer, model.chat_template
        if tokenizer == _OF_ENGINE:
            assert server is not None
            assert server.tokenizer is not None
            folder = folder_of(server.tokenizer)
            if template is None and server.template is not None:
                template = Path(server.template)
            if folder is None or (template is not None and not template.is_file()):
                return None
            tokenizer = str(folder)
        try:
            local = load_local(
                tokenizer,
                chat_template=template.read_text(encoding="utf-8") if template else None,
                template_arguments=model.chat_template_kwargs,
                content_format=None if model.content_format == "auto" else model.content_format,
                cache_mib=0 if self._isolated else self._settings.segment_cache_mib,
            )
        except Exception as error:  # noqa: BLE001 - on any failure the engine tokenizes instead
            _log.error(
                "tokenizer_unavailable",
                model=model.id,
                tokenizer=tokenizer,
                problem=str(error) if isinstance(error, TokenizerUnavailable) else repr(error),
                instead=instead,
                fix="give models[].tokenizer a folder with the model's tokenizer files",
            )
            return None
        _log.info(
            "tokenizer_ready",
            model=model.id,
            tokenizer=tokenizer,
            tokenizer_id=local.tokenizer_id,
            template_version=template_version(model.template_version or "", local.template_hash),
            **local.description,
        )
        return local

    def _serve(self, model: ModelSettings, local: LocalEncoder | None) -> ServedModel:
        model_id = ModelId(model.id)
        engine = EngineTokenizer(model_id, self._engines, self._threads, self._settings.engine_timeout_seconds)
        encoder = Encoder(local, engine, self._threads, self._settings.inline_bytes)
        rules = PromptRules(self._fleet, model_id, encoder, excludes_tools=model.exclude_tools_when_tool_choice_none)
        rules.adapt()
        label = model.template_version or ""
        tokenizer_id = local.tokenizer_id if local else _OF_ENGINE
        template = template_version(label, (local.template_hash or "none") if local else _OF_ENGINE)
        return ServedModel(
            model_id,
            encoder,
            token_counts=TokenCounts(partial(_count, local)) if local is not None else None,
            template_tells_time=local is not None and local.tells_time,
            tools_first=local is not None and local.tools_first,
            rules=rules,
            version=_Version(self._fleet, model_id, tokenizer_id, label, template).present,
        )


class _Version:
    """The version of a model as far as it is loaded, with what the engines tell of it.

    Args:
        fleet: The replicas.
        model: Id of the model.
        tokenizer_id: Its tokenizer.
        label: The operator's label.
        template: The label and the template's hash.
    """

    def __init__(self, fleet: Fleet, model: ModelId, tokenizer_id: str, label: str, template: str) -> None:
        self._fleet = fleet
        self._model = model
        self._facts = fleet.card_facts(model)
        self._present = ModelVersion(model, tokenizer_id, label, template, *self._facts)

    def present(self) -> ModelVersion:
        """The present version; the same object until a replica tells of its models again."""
        facts = self._fleet.card_facts(self._model)
        if facts is not self._facts:
            adapter, context_limit = self._facts = facts
            self._present = self._present._replace(adapter=adapter, context_limit=context_limit)
        return self._present


def _count(local: LocalEncoder, text: str) -> int:
    return len(local.encode_text(text)) // TOKEN_BYTES
