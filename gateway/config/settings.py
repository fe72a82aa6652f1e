"""All settings of the gateway: one section per package, and the models with their replicas."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails

from gateway.config.canon_settings import CanonSettings, canon_mistakes
from gateway.config.config_file import read_config
from gateway.config.discovery_settings import ZONE, DiscoverSettings
from gateway.config.experiment_settings import ExperimentSettings
from gateway.config.history_settings import CostSettings, HistorySettings, ResponsesSettings
from gateway.config.index_settings import EncodeSettings, IndexSettings, IngestSettings
from gateway.config.personal_data_settings import PersonalDataSettings
from gateway.config.prompts_settings import PromptSettings, PromptsFile, prompt_mistakes, warm_mistakes
from gateway.config.replica_settings import ReplicaSettings, address_of
from gateway.config.routing_settings import PlacementSettings, QueueSettings, RelaySettings
from gateway.config.server_settings import ServerSettings, is_loopback
from gateway.config.spaces_settings import SpacesSettings
from gateway.config.state_settings import State
from gateway.config.telemetry_settings import AuditSettings, ExplainSettings, LogSettings, TracingSettings
from gateway.config.tenant_checks import Mistake, mistakes
from gateway.config.tenants_settings import AdmissionSettings, TenantSettings, is_open
from gateway.config.warmup_settings import WarmSettings
from gateway.core.canonical import RuleModes, read_modes
from gateway.core.request import ENGINE_PATHS, Endpoint
from gateway.core.tenant import ANYBODY, DEFAULT_TENANT

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
_BUILTIN_TOKENIZERS = ("demo",)
_SPLIT_PATTERNS = ("cl100k_base", "gpt2", "o200k_base", "o200k_harmony", "p50k_base", "p50k_edit", "r50k_base")


class ModelSettings(BaseModel):
    """One model: its name, how its prompts become tokens, and the replicas that serve it."""

    model_config = _STRICT

    id: str
    """What clients send as `model`. It has to be the name under which the engines serve it, because bodies are passed
    on unchanged."""

    tokenizer: str = Field(default="engine", min_length=1)
    """Where the tokens come from: a folder or hub id with the model's tokenizer, `tiktoken:NAME_OR_FILE`,
    `tiktoken:NAME:FILE` (a file of ranks whose text is split as for the encoding of that name), `builtin:demo` (the
    small one that ships with the gateway, for the simulated engine), or `engine`: ask the engine for every prompt and
    answer. `engine` costs a round trip to a replica; a local tokenizer is faster. The tokenizer files that an SGLang
    names are loaded where this machine has them at the same path, or in its hub cache; SGLang before 0.5.12 cannot be
    asked about chats otherwise. Relative folders start at the working directory."""

    chat_template: Path | None = None
    """Jinja file with the chat template, where the engine was started with `--chat-template`. Null: the tokenizer's
    own. A different template than the engine's makes every prediction wrong. A relative path starts at the working
    directory."""

    chat_template_kwargs: dict[str, Any] = {}
    """Default arguments of the chat template, as the engine's `--default-chat-template-kwargs`; a request's own win."""

    content_format: Literal["auto", "string", "openai"] = "auto"
    """How the template takes a message's content parts, as the engine's `--chat-template-content-format`: joined
    (`string`) or as a list (`openai`). `auto` reads it off the template, as the engine does."""

    exclude_tools_when_tool_choice_none: bool | None = None
    """Whether vLLM runs with the flag of this name, which leaves tools out of a prompt when `tool_choice` is `none`.
    Null: found out from the prompt tokens that answers report, after the first such request."""

    template_version: str | None = Field(default=None, min_length=1)
    """Label of the operator for the template in use. A new label makes prefixes count as different from those before.
    Null: only the template's own hash distinguishes versions."""

    canon: Annotated[RuleModes, BeforeValidator(read_modes)] = {}
    """Modes of canonicalization rules for this model's requests, such as `{dynamic-suffix: apply}`; they go before
    `canon.rules`. A rule that is not named is as there."""

    gpus_per_replica: float = Field(default=1, gt=0, le=1024)
    """GPUs of one replica (tensor times pipeline parallelism): by them prefill seconds become GPU seconds and money."""

    cost: CostSettings | None = None
    """Prices of this model's tokens. Null: those of `cost`."""

    discover: DiscoverSettings | None = None
    """Where replicas of this model are found that the file does not name. Null: there are only those in `replicas`."""

    replicas: tuple[ReplicaSettings, ...] = Field(default=(), validate_default=True)
    """The replicas that serve this model: a list of URLs or of mappings. One at least, unless there is `discover`."""

    @field_validator("id")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not name or name != name.strip() or not name.isprintable():
            raise ValueError("expected a name without control characters and without spaces at its ends")
        return name

    @field_validator("tokenizer")
    @classmethod
    def _is_a_tokenizer(cls, tokenizer: str) -> str:
        kind, colon, name = tokenizer.partition(":")
        if colon and kind == "builtin" and name not in _BUILTIN_TOKENIZERS:
            raise ValueError(f"unknown built-in tokenizer; there is builtin:{', builtin:'.join(_BUILTIN_TOKENIZERS)}")
        if colon and kind == "tiktoken" and not name:
            raise ValueError("tiktoken: wants an encoding's name or a file behind it (such as tiktoken:o200k_base)")
        encoding, colon, file = name.partition(":")
        if kind == "tiktoken" and colon and "/" not in encoding and not (file and encoding in _SPLIT_PATTERNS):
            raise ValueError(
                "tiktoken: wants NAME:FILE, a file of ranks behind the encoding by whose pattern text is split"
                f" (one of {', '.join(_SPLIT_PATTERNS)})"
            )
        return tokenizer

    # Before, not as a `min_length`: that one would also complain when every item is there but refused.
    @field_validator("replicas", mode="before")
    @classmethod
    def _is_not_empty(cls, replicas: Any, info: ValidationInfo) -> Any:
        # A `discover` that was refused is not in ``data``; then there will be replicas once it is right.
        if isinstance(replicas, list | tuple) and not replicas and info.data.get("discover", ...) is None:
            raise ValueError("expected at least one replica (add its URL, or say in discover where they are found)")
        return replicas

    @field_validator("chat_template")
    @classmethod
    def _is_a_file(cls, template: Path | None) -> Path | None:
        if template is not None and not template.is_file():
            raise ValueError(f"no such file: {template.absolute()}")
        return template


class Settings(BaseModel):
    """The whole configuration. Only `models` has to be given."""

    model_config = _STRICT

    server: ServerSettings = ServerSettings()
    """Where the gateway listens, and what it accepts."""

    log: LogSettings = LogSettings()
    """What is logged."""

    models: tuple[ModelSettings, ...]
    """The models, one at least."""

    admission: AdmissionSettings = AdmissionSettings()
    """Authentication of clients."""

    tenants: tuple[TenantSettings, ...] = ()
    """The tenants, with their keys and limits. Empty: all requests belong to tenant `default`."""

    spaces: SpacesSettings = SpacesSettings()
    """Who shares cached prefixes with whom, and for how long."""

    personal_data: PersonalDataSettings = PersonalDataSettings()
    """Personal data in prompts."""

    canon: CanonSettings = CanonSettings()
    """Canonicalization of prompts."""

    prompts: dict[str, PromptSettings] = {}
    """Registered prompts by id: applications whose requests have rules and lifetimes of their own, and whose texts the
    gateway fills in. Empty: there are none besides those of `prompts_file`."""

    prompts_file: Path | None = None
    """A YAML file with further registered prompts: the key `prompts` at its top, with the same form as here. Read at
    start, and again when it changes. Null: none. A relative path starts at the working directory."""

    explain: ExplainSettings = ExplainSettings()
    """Why prompt tokens were computed again."""

    history: HistorySettings = HistorySettings()
    """Totals that outlive a restart."""

    responses: ResponsesSettings = ResponsesSettings()
    """Stored responses of the Responses API."""

    cost: CostSettings = CostSettings()
    """Prices of tokens, where a model has none of its own."""

    experiment: ExperimentSettings = ExperimentSettings()
    """A share of the traffic that is served without the gateway's help, to compare with."""

    audit: AuditSettings = AuditSettings()
    """The audit log."""

    tracing: TracingSettings = TracingSettings()
    """OpenTelemetry traces."""

    warm: WarmSettings = WarmSettings()
    """Declared prefixes that are sent to replicas before clients need them."""

    encode: EncodeSettings = EncodeSettings()
    """How prompts become tokens."""

    index: IndexSettings = IndexSettings()
    """How prefixes are remembered."""

    ingest: IngestSettings = IngestSettings()
    """How the engines' KV events are followed."""

    placement: PlacementSettings = PlacementSettings()
    """Which replica gets a request."""

    queue: QueueSettings = QueueSettings()
    """Requests that wait in the gateway while all replicas are busy."""

    relay: RelaySettings = RelaySettings()
    """Connections to the replicas, and their health."""

    state: State = None
    """Where several gateways keep what they share (loads, routes, spaces, limits, context blocks of conversations):
    `memory` (each its own) or the URL of a Redis: `redis://:PASSWORD@redis:6379/0`,
    `redis+sentinel://:PASSWORD@host1:26379,host2:26379/mymaster/0` or
    `redis+cluster://:PASSWORD@host1:6379,host2:6379`; with `rediss` for TLS, and `?ssl_ca_certs=FILE` for an authority
    of your own. What is written there is encrypted with `spaces.secret`, which it needs. Null: `memory`. Requests wait
    for it only where they look for context blocks, no longer than 20 ms, and not at all while it is away."""

    @field_validator("models", mode="wrap")
    @classmethod
    def _names_are_unique(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        if isinstance(value, list | tuple) and not value:
            raise ValueError("expected at least one model (add one with `id` and `replicas`)")
        # Around, not behind, the fields' own validation: a repeated name is reported together with their mistakes.
        mistakes = [
            InitErrorDetails(type="value_error", loc=location, input=None, ctx={"error": ValueError(message)})
            for location, message in _repeated_names(value)
        ]
        try:
            models = validate(value)
        except ValidationError as invalid:
            mistakes += [
                InitErrorDetails(type=error["type"], loc=error["loc"], input=error["input"], ctx=error.get("ctx", {}))
                for error in invalid.errors(include_url=False)
            ]
        if mistakes:
            raise ValidationError.from_exception_data("models", mistakes, hide_input=True)
        return models

    @model_validator(mode="wrap")
    @classmethod
    def _fits_together(cls, value: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        settings = validate(value)
        found = list(settings._mistakes())
        if found:
            raise ValidationError.from_exception_data(
                "settings",
                [
                    InitErrorDetails(type="value_error", loc=location, input=None, ctx={"error": ValueError(message)})
                    for location, message in found
                ],
                hide_input=True,
            )
        return settings

    @property
    def isolation(self) -> Literal["tenant", "group", "none"]:
        """``spaces.isolation``, with its default settled."""
        return self.spaces.isolation or ("none" if self.is_open else "tenant")

    @property
    def is_open(self) -> bool:
        """Whether the gateway is in open mode: clients need not authenticate."""
        return is_open(self.tenants, self.admission)

    def _mistakes(self) -> Iterator[Mistake]:
        yield from mistakes(
            self.tenants,
            self.admission,
            public_host=self.server.host,
            is_loopback=is_loopback(self.server.host),
            forward_authorization=self.relay.forward_authorization,
            models=[model.id for model in self.models],
            regions=self._regions(),
        )
        known = {str(Endpoint.CHAT), *map(str, ENGINE_PATHS), *self.server.passthrough_paths}
        named = {path for model in self.models for replica in model.replicas for path in replica.endpoints or ()}
        if unknown := named - known:
            yield ("models",), f"unknown path in endpoints: {min(unknown)[:99]!r} (use {', '.join(sorted(known))})"
        yield from canon_mistakes(self.canon, [model.id for model in self.models])
        if self.isolation != "none" and self.spaces.secret is None:
            yield (
                ("spaces", "secret"),
                f"required, because salts made with it keep prefixes apart (isolation: {self.isolation}; make one with"
                " `openssl rand -hex 32`; or, where all may share, set spaces.isolation: none)",
            )
        elif self.state is not None and self.spaces.secret is None:
            yield (
                ("spaces", "secret"),
                "required, because what is kept in Redis is encrypted with it (make one with `openssl rand -hex 32`,"
                " the same for all gateways)",
            )
        if self.isolation == "none":
            yield from self._lifetimes_without_spaces()
        yield from self._prompt_mistakes(self.prompts)
        if self.experiment.cold_share and not self.explain.enabled:
            yield (
                ("experiment", "cold_share"),
                "needs explain.enabled: true, because the process that explains compares the groups",
            )

    def _lifetimes_without_spaces(self) -> Iterator[Mistake]:
        for number, tenant in enumerate(self.tenants):
            for name in ("idle_ttl_seconds", "max_age_seconds"):
                if getattr(tenant, name) is not None:
                    yield (
                        ("tenants", number, name),
                        "a tenant has no spaces of its own, because spaces.isolation is none: all tenants would lose"
                        f" their prefixes with it (set spaces.{name} for all, or spaces.isolation: tenant)",
                    )

    def _prompt_mistakes(self, prompts: Mapping[str, PromptSettings]) -> Iterator[Mistake]:
        """Mistakes in registered prompts, with their locations from the top of the file that holds them."""
        tenants = {tenant.id for tenant in self.tenants}
        known = None if ANYBODY in tenants else tenants | ({DEFAULT_TENANT} if self.is_open else set())
        for place, message in prompt_mistakes(prompts, [model.id for model in self.models], known):
            yield ("prompts", *place), message
        models = [model.id for model in self.models]
        for place, message in warm_mistakes(prompts, models, isolated=self.isolation != "none"):
            yield ("prompts", *place), message

    def with_prompts(self, file: Path, environ: Mapping[str, str]) -> Self:
        """The settings with the prompts of a file added.

        Raises:
            ConfigInvalid: With every mistake in the file, each with its line and key.
        """

        def check(read: PromptsFile) -> Iterator[Mistake]:
            for name in read.prompts.keys() & self.prompts.keys():
                yield ("prompts", name), "the configuration has a prompt with this id already (remove one of them)"
            # Texts of the file may include texts of the configuration, which were checked without the file.
            for place, message in self._prompt_mistakes(self.prompts | read.prompts):
                if place[1] in read.prompts:
                    yield place, message

        read = read_config(file, PromptsFile, environ, check=check, holds="the key prompts (prompts: {} for none)")
        return self.model_copy(update={"prompts": self.prompts | read.prompts})

    def _regions(self) -> set[str] | None:
        """Where replicas are; None if that is only known when they are found."""
        found = [model.discover for model in self.models if model.discover is not None]
        if any(each.file is not None or each.template.region == ZONE for each in found):
            return None
        regions = {replica.region for model in self.models for replica in model.replicas}
        return (regions | {each.template.region for each in found}) - {""}

    def masked(self) -> dict[str, Any]:
        """The settings as JSON-ready values in the file's layout, without secrets and texts of prompts."""
        plain = _masked(self.model_dump())
        assert isinstance(plain, dict)
        for prompt in plain["prompts"].values():
            for version in prompt["versions"].values():
                for message in version["messages"]:  # prompts are shown nowhere
                    message["content"] = f"{len(message['content'])} characters"
                version["variables"] = dict.fromkeys(version["variables"], "***")
        return plain


def load_settings(path: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read and validate the configuration file.

    Args:
        path: The YAML file. Mistakes name it as it is given here.
        environ: Where ``${NAME}`` is looked up.

    Raises:
        ConfigInvalid: With every mistake in the file, each with its line and key.
    """
    settings = read_config(path, Settings, environ)
    return settings if settings.prompts_file is None else settings.with_prompts(settings.prompts_file, environ)


def _repeated_names(models: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Duplicate model ids, replica URLs and replica ids. Malformed entries are skipped."""
    first_model: dict[str, int] = {}
    first_url: dict[tuple[str, str], str] = {}
    first_id: dict[str, str] = {}
    for m, model in enumerate(_items(models)):
        name = _member(model, "id")
        if isinstance(name, str) and first_model.setdefault(name, m) != m:
            yield (m, "id"), f"models[{first_model[name]}] has this id already (each model stands in the file once)"
        for r, replica in enumerate(_items(_member(model, "replicas"))):
            try:
                valid = ReplicaSettings.model_validate(replica)
            except ValidationError:
                continue
            here = f"models[{m}].replicas[{r}]"
            there = first_url.setdefault((address_of(valid.url), urlsplit(valid.url).path), here)
            if there != here:
                yield (m, "replicas", r, "url"), f"{there} has this URL already (each replica stands in the file once)"
                continue  # its default id is the same too, which is no second mistake
            there = first_id.setdefault(valid.id, here)
            if there != here:
                yield (m, "replicas", r, "id"), f"{there} is named {valid.id} already (give one of them another id)"


def _items(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _masked(value: Any) -> Any:
    match value:
        case SecretStr():
            return "***"
        case Path():
            return str(value)
        case dict():
            return {key: _masked(item) for key, item in value.items()}
        case list() | tuple():
            return [_masked(item) for item in value]
        case _:
            return value
