"""Prefix spaces: requests may reuse each other's cached prefixes only within one space."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class CacheSpace:
    """Everything besides the tokens that separates cached blocks in an engine.

    Attributes:
        model_id: Id of the model, as clients name it.
        adapter: Name of the LoRA adapter, empty for none.
        salt: The request's ``cache_salt``, empty for none.
        variant: What makes the tokens themselves not comparable with an engine's: empty for the model's own token ids.
    """

    model_id: str
    adapter: str = ""
    salt: str = ""
    variant: str = ""


class ModelVersion(NamedTuple):
    """The version of a model, as far as prefixes depend on it; the attributes are as in ``PrefixSpace``.

    Attributes:
        model_id: Id of the model.
        tokenizer_id: Its tokenizer.
        template_label: The operator's label alone, empty for none.
        template_version: The label and the template's hash.
        adapter: Its LoRA adapter.
        context_limit: Its longest context.
    """

    model_id: str
    tokenizer_id: str
    template_label: str
    template_version: str
    adapter: str
    context_limit: int


@dataclass(frozen=True, slots=True)
class PrefixSpace:
    """A prefix space: tenant, application, model version and epoch.

    Attributes:
        model_id: Id of the model, as clients name it.
        tokenizer_id: Hash of the tokenizer; ``engine`` where the engine is asked for every prompt's tokens.
        template_version: The operator's label, and the hash of the chat template with its default arguments.
        tenant: ``tenant:NAME``, or ``group:NAME`` for tenants that share; empty without isolation.
        scope: Role, language, environment; empty for none.
        adapter: Name of the LoRA adapter, empty for none.
        context_limit: Longest context of the model in tokens, as its engines tell; 0 if they do not.
        region: Regions the tenant is pinned to, sorted, with commas between; empty for none.
        epoch: Number of the present epoch. Numbers are never reused, so blocks of an ended epoch are unreachable. 0: a
            space without isolation that does not expire and was never reset.
        prompt: The application, as ``id@version`` or ``id``; empty for requests that name none.
    """

    model_id: str
    tokenizer_id: str
    template_version: str
    tenant: str
    scope: str
    adapter: str
    context_limit: int
    region: str
    epoch: int
    prompt: str = ""


class ResetCause(StrEnum):
    """Why an epoch ended."""

    MANUAL = "manual"
    """An operator asked for it."""
    IDLE_TTL = "idle_ttl"
    """It was not used for ``idle_ttl_seconds``."""
    MAX_AGE = "max_age"
    """It reached ``max_age_seconds``."""
    MODEL_UPDATE = "model_update"
    """An engine serves another model, or is another release, than before; or the model's context limit changed."""
    TEMPLATE_CHANGED = "template_changed"
    """The model's chat template, its version or its tokenizer is another than before."""
    PROMPT_VERSION = "prompt_version"
    """Another version of the application's registered prompt became the current one."""
    CONFIGURATION = "configuration"
    """Spaces are kept apart in another way, or with another secret, than before."""
    CROWDED_OUT = "crowded_out"
    """More spaces than ``max_spaces``: the one unused for longest, of the owner with the most spaces, was ended."""
    MERGED = "merged"
    """Two gateways had each begun an epoch; both continue with the later one."""


@dataclass(frozen=True, slots=True)
class SpaceSelection:
    """The spaces that a reset applies to. None: any value.

    Attributes:
        model: Id of a model.
        tenant: Id of a tenant; its group's spaces, where groups share.
        template_version: A version as ``GET /admin/api/spaces`` shows it, or the operator's label alone.
        scope: A scope; empty for requests without one.
        prompt: An application, as ``id@version``, or its id for all its versions; empty for requests without one.
    """

    model: str | None = None
    tenant: str | None = None
    template_version: str | None = None
    scope: str | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class SpaceEnd:
    """The end of an epoch.

    Attributes:
        space: The space, with the epoch that ended.
        id: Its short name.
        cause: Why.
        by: Id of the admin token that requested it, empty for none.
    """

    space: PrefixSpace
    id: str
    cause: ResetCause
    by: str = ""


@dataclass(frozen=True, slots=True)
class SpaceGrant:
    """The space of a request, and the salt to send.

    Attributes:
        id: Short name of the present epoch, for logs and headers.
        salt: Value of ``cache_salt`` to send; None leaves the request without one.
        space: The space; None if it has none.
        narrowed: A hash of the client's own salt; empty for none.
    """

    id: str
    salt: str | None
    space: PrefixSpace | None = None
    narrowed: str = ""


NO_SPACE = SpaceGrant("", None)
"""For a request that failed earlier."""
