"""What an analysis is done with: tokenizers, rules, isolation and times, of a configuration or by default."""

from collections.abc import Iterator, Mapping

import msgspec

from gateway.config.canon_settings import CanonSettings
from gateway.config.personal_data_settings import PersonalDataSettings
from gateway.config.server_settings import ServerSettings
from gateway.config.settings import ModelSettings, Settings
from gateway.config.spaces_settings import ISOLATED_IDLE_TTL_SECONDS, ISOLATED_MAX_AGE_SECONDS
from gateway.core.json_portions import JsonLimits
from gateway.evaluation.bad_input import BadInput
from gateway.explain.worker.explain_messages import ModelOptions

BUILT_IN = "builtin:demo"
"""Tokenizer without a configuration: the small one that the package has."""

ENGINE_TOKENIZER = "engine"
"""Setting of a model whose tokenizer is only in its engine."""

DEFAULT_BLOCK_SIZE = 16
"""Tokens per block: vLLM's default."""

DEFAULT_LONG_TOKENS = 1024
"""Length from which a shared prefix counts as long."""


class AnalysisOptions(msgspec.Struct, frozen=True):
    """The options of an analysis.

    Attributes:
        models: Tokenizers by the name of a model in the requests.
        otherwise: The tokenizer of every other model; None if only the engine has it.
        canon: Settings of the rules.
        personal_data: Kinds and patterns of personal data.
        limits: Limits of bodies.
        is_isolated: Whether tenants share no prefixes.
        idle_ttl_seconds: As in ``SpacesSettings``; what isolation would set where the configuration sets none.
        max_age_seconds: As in ``SpacesSettings``, likewise.
        block_size: Tokens per block.
        long_tokens: Length from which a shared prefix counts as long.
        tokenizer: What tokens are counted with, for the report.
        is_built_in: Whether that is only the built-in tokenizer.
        with_rules: Whether the gain of each rule is worked out.
    """

    models: Mapping[str, ModelOptions | None]
    otherwise: ModelOptions | None
    canon: CanonSettings = CanonSettings()
    personal_data: PersonalDataSettings = PersonalDataSettings()
    limits: JsonLimits = ServerSettings().json_limits
    is_isolated: bool = False
    idle_ttl_seconds: float = ISOLATED_IDLE_TTL_SECONDS
    max_age_seconds: float = ISOLATED_MAX_AGE_SECONDS
    block_size: int = DEFAULT_BLOCK_SIZE
    long_tokens: int = DEFAULT_LONG_TOKENS
    tokenizer: str = BUILT_IN
    is_built_in: bool = True
    with_rules: bool = True

    def options_of(self, model: str) -> ModelOptions | None:
        """The tokenizer of a model; None if only its engine has it."""
        return self.models.get(model, self.otherwise)


def default_options(tokenizer: str | None) -> AnalysisOptions:
    """The options without a configuration: one tokenizer for all models, shared prefixes, rules as by default."""
    name = tokenizer or BUILT_IN
    return AnalysisOptions({}, ModelOptions(name), tokenizer=name, is_built_in=name == BUILT_IN)


def configured_options(settings: Settings, *, tokenizer: str | None, model: str | None) -> AnalysisOptions:
    """The options of a configuration.

    Args:
        settings: The configuration.
        tokenizer: Used for all models in place of their own; None for none.
        model: The model whose tokenizer is used for requests to models that the configuration does not have; None: its
            first one.

    Raises:
        BadInput: The configuration has no such model.
    """
    known = {each.id: each for each in settings.models}
    if model is not None and model not in known:
        raise BadInput(f"--model {model}: the configuration has no such model; it has {', '.join(known)}")
    chosen = known[model] if model is not None else settings.models[0]
    models = {name: _model_options(each, tokenizer) for name, each in known.items()}
    otherwise = _model_options(chosen, tokenizer)
    return AnalysisOptions(
        models=models,
        otherwise=otherwise,
        canon=settings.canon,
        personal_data=settings.personal_data,
        limits=settings.server.json_limits,
        is_isolated=settings.isolation != "none",
        idle_ttl_seconds=settings.spaces.idle_ttl_seconds or ISOLATED_IDLE_TTL_SECONDS,
        max_age_seconds=settings.spaces.max_age_seconds or ISOLATED_MAX_AGE_SECONDS,
        tokenizer=tokenizer or ", ".join(dict.fromkeys(each.tokenizer for each in settings.models)),
        is_built_in=otherwise is not None and otherwise.tokenizer == BUILT_IN,
    )


def _model_options(model: ModelSettings, tokenizer: str | None) -> ModelOptions | None:
    if tokenizer is not None:
        return ModelOptions(tokenizer)
    if model.tokenizer == ENGINE_TOKENIZER:
        return None
    try:
        template = model.chat_template.read_text(encoding="utf-8") if model.chat_template else None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{model.chat_template}: the chat template of {model.id} cannot be read: {error}") from None
    return ModelOptions(
        model.tokenizer,
        template,
        msgspec.json.encode(model.chat_template_kwargs),
        None if model.content_format == "auto" else model.content_format,
    )


class EveryModel(Mapping[str, ModelOptions]):
    """The tokenizers of all models that a log may name.

    Args:
        options: The options of the analysis.
    """

    def __init__(self, options: AnalysisOptions) -> None:
        self._options = options

    def __getitem__(self, model: str) -> ModelOptions:
        """The tokenizer of a model."""
        found = self._options.options_of(model)
        if found is None:
            raise KeyError(model)
        return found

    def __iter__(self) -> Iterator[str]:
        """The models of the configuration; the name of every other one is empty."""
        yield from (name for name, options in self._options.models.items() if options is not None)
        if self._options.otherwise is not None:
            yield ""

    def __len__(self) -> int:
        return sum(1 for _ in self)
