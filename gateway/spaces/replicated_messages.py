"""How lives and resets of spaces are written down for other gateways."""

import hashlib

import msgspec

from gateway.core.space import PrefixSpace, ResetCause, SpaceSelection
from gateway.spaces.epoch_changes import Reset
from gateway.spaces.epoch_table import key_of
from gateway.spaces.space_epoch import SpaceEpoch, check_number, life_id


class EpochMessage(msgspec.Struct, array_like=True):
    """A life, without what came of it: every gateway counts its own requests."""

    model_id: str
    tokenizer_id: str
    template_version: str
    tenant: str
    scope: str
    adapter: str
    context_limit: int
    region: str
    epoch: int
    born_at: float
    used_at: float
    idle_ttl_seconds: float | None
    max_age_seconds: float | None


class ResetMessage(msgspec.Struct, array_like=True):
    """A reset."""

    model: str | None
    tenant: str | None
    template_version: str | None
    scope: str | None
    owner: str | None
    epoch: int
    cause: str
    by: str


class ModelUpdateMessage(msgspec.Struct, array_like=True):
    """What an engine was found to run, which ended its model's spaces."""

    replica: str
    root: str
    version: str


class SpacesMessage(msgspec.Struct, array_like=True):
    """One message.

    Attributes:
        begun: Lives that began.
        used: When lives were used last, by their short names.
        fresh: Resets of just now.
        resets: Resets that were told before, but perhaps not heard.
        updates: What engines were found to run.
    """

    begun: list[EpochMessage] = []
    used: dict[str, float] = {}
    fresh: list[ResetMessage] = []
    resets: list[ResetMessage] = []
    updates: list[ModelUpdateMessage] = []


def told_life(life: SpaceEpoch) -> EpochMessage:
    """A life to be told."""
    return EpochMessage(
        *key_of(life.space),
        life.space.epoch,
        life.born_at,
        life.used_at,
        life.idle_ttl_seconds,
        life.max_age_seconds,
    )


def heard_life(told: EpochMessage) -> SpaceEpoch:
    """A life that was told.

    Raises:
        ValueError: it cannot be one.
    """
    check_number(told.epoch)
    space = PrefixSpace(
        told.model_id,
        told.tokenizer_id,
        told.template_version,
        told.tenant,
        told.scope,
        told.adapter,
        told.context_limit,
        told.region,
        told.epoch,
    )
    return SpaceEpoch(
        space=space,
        id=life_id(space),
        born_at=told.born_at,
        used_at=told.used_at,
        idle_ttl_seconds=told.idle_ttl_seconds,
        max_age_seconds=told.max_age_seconds,
    )


def told_reset(reset: Reset) -> ResetMessage:
    """A reset to be told."""
    chosen = reset.selection
    return ResetMessage(
        chosen.model,
        chosen.tenant,
        chosen.template_version,
        chosen.scope,
        reset.owner,
        reset.epoch,
        str(reset.cause),
        reset.by,
    )


def heard_reset(told: ResetMessage) -> Reset:
    """A reset that was told.

    Raises:
        ValueError: it cannot be one.
    """
    selection = SpaceSelection(told.model, told.tenant, told.template_version, told.scope)
    return Reset(selection, told.owner, check_number(told.epoch), ResetCause(told.cause), told.by)


def reset_name(reset: Reset) -> str:
    """What a reset is written down as: a later one of the same selection takes its place."""
    return f"reset:{hashlib.sha256(repr(reset.key).encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def life_name(life: SpaceEpoch) -> str:
    """What a life is written down as."""
    return f"life:{life.id}"
