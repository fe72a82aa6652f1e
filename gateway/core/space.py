"""Inside which two equal prefixes are the same cache blocks."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class CacheSpace:
    """Everything besides the tokens by which an engine tells cached blocks apart.

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
    """What a model is at present, as far as its prefixes are concerned; the attributes are as in ``PrefixSpace``.

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
    """Inside which a prefix may be reused: by whom, for what, and for how long.

    Attributes:
        model_id: Id of the model, as clients name it.
        tokenizer_id: Hash of the tokenizer; ``engine`` where the engine is asked for every prompt's tokens.
        template_version: The operator's label, and the hash of the chat template with its default arguments.
        tenant: ``tenant:NAME``, or ``group:NAME`` for tenants that share; empty without isolation.
        scope: Role, language, environment; empty for none.
        adapter: Name of the LoRA adapter, empty for none.
        context_limit: Longest context of the model in tokens, as its engines tell; 0 if they do not.
        region: Regions the tenant is pinned to, sorted, with commas between; empty for none.
        epoch: Which life of the space it is. Every life has a number that no life had before, so nothing of one that
            ended can be reached again. 0: the life of a space without isolation that was never reset.
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


class ResetCause(StrEnum):
    """Why the life of a space ended."""

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
    CONFIGURATION = "configuration"
    """Spaces are kept apart in another way, or with another secret, than before."""
    CROWDED_OUT = "crowded_out"
    """More spaces live than ``max_spaces``: of whoever has most, the one unused for longest made room."""
    MERGED = "merged"
    """Two gateways had each begun the space on its own; both go on with the one that began later."""


@dataclass(frozen=True, slots=True)
class SpaceSelection:
    """Which spaces a reset is for. None: whatever it is.

    Attributes:
        model: Id of a model.
        tenant: Id of a tenant; its group's spaces, where groups share.
        template_version: A version as ``GET /admin/api/spaces`` shows it, or the operator's label alone.
        scope: A scope; empty for requests without one.
    """

    model: str | None = None
    tenant: str | None = None
    template_version: str | None = None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class SpaceEnd:
    """The life of a space ended.

    Attributes:
        space: The space, with the epoch that ended.
        id: Its short name.
        cause: Why.
        by: Who asked for it (id of an admin token), empty where nobody did.
    """

    space: PrefixSpace
    id: str
    cause: ResetCause
    by: str = ""


@dataclass(frozen=True, slots=True)
class SpaceGrant:
    """A request's way into its space.

    Attributes:
        id: Short name of the space's present life, for logs and headers.
        salt: Value of ``cache_salt`` to send; None leaves the request without one.
        space: The space; None if it has none.
        narrowed: Stands for the salt the client itself sent, and gives nothing of it away; empty for none.
    """

    id: str
    salt: str | None
    space: PrefixSpace | None = None
    narrowed: str = ""


NO_SPACE = SpaceGrant("", None)
"""Of a request that did not get as far."""
