"""All settings of the gateway: the rooms' own, and the models with their replicas."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import SplitResult, urlsplit

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

from gateway.admission import mistakes
from gateway.admission.mistakes import Mistake
from gateway.admission.names import check_name
from gateway.admission.settings import AdmissionSettings, TenantSettings, is_open
from gateway.api.settings import ServerSettings, is_loopback
from gateway.canon.mistakes import canon_mistakes
from gateway.canon.personal.settings import PersonalDataSettings
from gateway.canon.settings import CanonSettings
from gateway.config_file import read_config
from gateway.encode.settings import EncodeSettings
from gateway.epochs.settings import SpacesSettings
from gateway.explain.settings import ExplainSettings
from gateway.index.settings import IndexSettings
from gateway.ingest.settings import IngestSettings
from gateway.placement.settings import PlacementSettings
from gateway.relay.settings import RelaySettings
from gateway.state.settings import State
from gateway.telemetry.settings import AuditSettings, LogSettings
from gateway.telemetry.tracing.settings import TracingSettings
from gateway.values.canonical import RuleModes, read_modes
from gateway.warming.settings import WarmSettings

_VISIBLE_ASCII = re.compile(r"[!-~]+")
_STRICT = ConfigDict(
    frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, use_attribute_docstrings=True
)
_HIGHEST_PORT = 65535
_BUILTIN_TOKENIZERS = ("demo",)


class ReplicaSettings(BaseModel):
    """One engine process that serves the model. A plain URL stands for a replica with nothing but a `url`."""

    model_config = _STRICT

    url: str
    """Where the engine listens: an http or https URL, such as `http://vllm-0:8000`. A path prefix is allowed, a query
    is not; leave the API's own `/v1` off. Each URL may stand in the file once."""

    id: str = Field(default=None, validate_default=True)
    """Name of the replica in headers, logs and metrics, unique in the file. Default: `host:port` of the URL. Set it
    when the address changes while the replica stays the same."""

    api_key: SecretStr | None = Field(default=None, min_length=1)
    """Secret sent to this replica as `authorization: Bearer`, as vLLM's `--api-key` wants it. Null: no such header."""

    region: str = ""
    """Where the replica is, for tenants that are pinned to `regions`: letters, digits and `.`, `_`, `:`, `-`. Empty: in
    none, so that no pinned tenant's request ever goes there."""

    events: str = "auto"
    """Where the engine publishes its KV events, by which the gateway knows what its cache holds. `auto` asks the engine
    (`GET /kv_event_sources` of vLLM, `GET /server_info` of SGLang); an address such as `tcp://vllm-0:5557` is for
    engines that do not tell, or are reached by another name; `off` predicts the cache from what was sent. With data
    parallelism, give the address of rank 0: rank r publishes on the port plus r."""

    replay: str | None = None
    """Where past KV events can be asked for, such as `tcp://vllm-0:5657`. Only beside an address in `events`; with
    `auto` the engine tells it. Without it, what the engine stored before the gateway came, or while the connection was
    broken, is not known."""

    @model_validator(mode="before")
    @classmethod
    def _from_plain_url(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _is_a_base_url(cls, url: str) -> str:
        parts = _split_url(url)
        if parts is None or parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("expected an http or https URL, such as http://vllm-0:8000")
        if parts.username is not None:
            raise ValueError("a URL with user or password is not used (give the credential as api_key)")
        if "?" in url or "#" in url:
            raise ValueError("a query or fragment cannot be kept (leave it off)")
        path = parts.path.rstrip("/")
        if path.endswith("/v1"):
            raise ValueError("/v1 is added by the gateway (leave it off)")
        return f"{parts.scheme}://{parts.netloc.lower()}{path}"

    @field_validator("id", mode="before")
    @classmethod
    def _named_by_address(cls, name: Any, info: ValidationInfo) -> Any:
        if name is not None:
            return name
        # A URL that was refused is not in ``data``; the replica is refused with it, so any name will do.
        return _address(info.data["url"]) if "url" in info.data else "unnamed"

    @field_validator("id")
    @classmethod
    def _fits_a_header(cls, name: str) -> str:
        if not _VISIBLE_ASCII.fullmatch(name):
            raise ValueError("the name travels in a header: expected visible ASCII characters, without spaces")
        return name

    @field_validator("region")
    @classmethod
    def _is_a_region(cls, region: str) -> str:
        return check_name(region) if region else region

    @field_validator("api_key")
    @classmethod
    def _secret_fits_a_header(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not _VISIBLE_ASCII.fullmatch(key.get_secret_value()):
            raise ValueError("a key travels in a header: expected visible ASCII characters, without spaces")
        return key

    @field_validator("events")
    @classmethod
    def _is_an_event_source(cls, events: str) -> str:
        return events if events in ("auto", "off") else _event_address(events, "auto, off, or ")

    @field_validator("replay")
    @classmethod
    def _belongs_to_events(cls, replay: str | None, info: ValidationInfo) -> str | None:
        if replay is None:
            return None
        if info.data.get("events") in ("auto", "off"):
            raise ValueError("only used beside an address in events (with auto the engine tells where to ask)")
        return _event_address(replay, "")


class ModelSettings(BaseModel):
    """One model: its name, how its prompts become tokens, and the replicas that serve it."""

    model_config = _STRICT

    id: str
    """What clients send as `model`. It has to be the name under which the engines serve it, because bodies are passed
    on unchanged."""

    tokenizer: str = Field(default="engine", min_length=1)
    """Where the tokens come from: a folder or hub id with the model's tokenizer, `tiktoken:NAME_OR_FILE`,
    `builtin:demo` (the small one that ships with the gateway, for the simulated engine), or `engine`: ask the engine
    for every prompt. `engine` always works and costs a round trip to a replica; a local tokenizer is faster. Relative
    folders start at the working directory."""

    chat_template: Path | None = None
    """Jinja file with the chat template, where the engine was started with `--chat-template`. Null: the tokenizer's
    own. A different template than the engine's makes every prediction wrong. A relative path starts at the working
    directory."""

    chat_template_kwargs: dict[str, Any] = {}
    """Default arguments of the chat template, as the engine's `--default-chat-template-kwargs`; a request's own win."""

    content_format: Literal["auto", "string", "openai"] = "auto"
    """How the template takes a message's content parts, as the engine's `--chat-template-content-format`: joined
    (`string`) or as a list (`openai`). `auto` reads it off the template, as the engine does."""

    template_version: str | None = Field(default=None, min_length=1)
    """Label of the operator for the template in use. A new label makes prefixes count as different from those before.
    Null: only the template's own hash tells versions apart."""

    canon: Annotated[RuleModes, BeforeValidator(read_modes)] = {}
    """Modes of canonicalization rules for this model's requests, such as `{dynamic-suffix: apply}`; they go before
    `canon.rules`. A rule that is not named is as there."""

    gpus_per_replica: float = Field(default=1, gt=0, le=1024)
    """GPUs of one replica (tensor times pipeline parallelism): by them prefill seconds become GPU seconds and money."""

    replicas: tuple[ReplicaSettings, ...]
    """The replicas that serve this model, one at least: a list of URLs or of mappings."""

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
        return tokenizer

    # Before, not as a `min_length`: that one would also complain when every item is there but refused.
    @field_validator("replicas", mode="before")
    @classmethod
    def _is_not_empty(cls, replicas: Any) -> Any:
        if isinstance(replicas, list | tuple) and not replicas:
            raise ValueError("expected at least one replica (add its URL)")
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
    """Who is let in."""

    tenants: tuple[TenantSettings, ...] = ()
    """Whose requests are kept apart, with their keys and limits. Empty: everybody is tenant `default`."""

    spaces: SpacesSettings = SpacesSettings()
    """Who shares cached prefixes with whom, and for how long."""

    personal_data: PersonalDataSettings = PersonalDataSettings()
    """Personal data in the leading messages of prompts."""

    canon: CanonSettings = CanonSettings()
    """What repeats in prompts, put in front of what varies."""

    explain: ExplainSettings = ExplainSettings()
    """Why prompt tokens were computed again."""

    audit: AuditSettings = AuditSettings()
    """The audit log."""

    tracing: TracingSettings = TracingSettings()
    """OpenTelemetry traces."""

    warm: WarmSettings = WarmSettings()
    """Caches that are filled before they are needed."""

    encode: EncodeSettings = EncodeSettings()
    """How prompts become tokens."""

    index: IndexSettings = IndexSettings()
    """How prefixes are remembered."""

    ingest: IngestSettings = IngestSettings()
    """How the engines' KV events are followed."""

    placement: PlacementSettings = PlacementSettings()
    """Which replica gets a request."""

    relay: RelaySettings = RelaySettings()
    """Connections to the replicas, and their health."""

    state: State = None
    """Where several gateways keep what they share, the context blocks of conversations: `memory` (each its own) or the
    URL of a Redis, `redis://:PASSWORD@redis:6379/0` (`rediss://` for TLS, with `?ssl_ca_certs=FILE` for an authority of
    your own). What is written there is encrypted with `spaces.secret`, which it needs. Null: `memory`. Requests never
    wait for it longer than 20 ms, and not at all while it is away."""

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
        """Whether nobody has to say who they are."""
        return is_open(self.tenants, self.admission)

    def _mistakes(self) -> Iterator[Mistake]:
        yield from mistakes(
            self.tenants,
            self.admission,
            public_host=self.server.host,
            is_loopback=is_loopback(self.server.host),
            forward_authorization=self.relay.forward_authorization,
            models=[model.id for model in self.models],
            regions={replica.region for model in self.models for replica in model.replicas if replica.region},
        )
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

    def masked(self) -> dict[str, Any]:
        """The settings as JSON-ready values in the file's layout, every secret replaced by ``***``."""
        plain = _masked(self.model_dump())
        assert isinstance(plain, dict)
        return plain


def load_settings(path: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read and validate the configuration file. Args: path: The YAML file. Mistakes name it as it is given here.
    environ: Where ``${NAME}`` is looked up. Raises: ConfigInvalid: With every mistake in the file, each with its line
    and key."""
    return read_config(path, Settings, environ)


def _split_url(url: str) -> SplitResult | None:
    """The URL's parts, or None if it is none. ``urlsplit`` removes tabs and line ends in silence, so look before."""
    if not _VISIBLE_ASCII.fullmatch(url):
        return None
    try:
        parts = urlsplit(url)
        valid = parts.port != 0
    except ValueError:
        return None
    return parts if valid and not parts.netloc.endswith(":") else None


def _event_address(address: str, instead: str) -> str:
    """A ZeroMQ address to connect to."""
    if address.startswith("ipc://") and len(address) > len("ipc://"):
        return address
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if (
        not address.startswith("tcp://")
        or not _VISIBLE_ASCII.fullmatch(address)
        or not host
        or "/" in host
        or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= _HIGHEST_PORT)
    ):
        raise ValueError(f"expected {instead}an address such as tcp://vllm-0:5557")
    if host in ("*", "0.0.0.0", "[::]"):  # noqa: S104 - refused, not bound
        raise ValueError("expected the engine's host name (* is for the engine's own side)")
    return address


def _address(url: str) -> str:
    """``host:port`` of a valid URL, the scheme's own port included."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
    return f"{host}:{port}"


def _repeated_names(models: Any) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Model ids, replica URLs and replica ids that stand in the file before. What is malformed is passed over here."""
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
            there = first_url.setdefault((_address(valid.url), urlsplit(valid.url).path), here)
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
