"""Messages and records of epochs and resets for other gateways."""

import hashlib

import msgspec

from gateway.core.space import PrefixSpace, ResetCause, SpaceSelection
from gateway.spaces.epoch_table import key_of
from gateway.spaces.resets import Reset
from gateway.spaces.space_epoch import SpaceEpoch, check_number, life_id


class EpochMessage(msgspec.Struct, array_like=True):
    """An epoch, without its totals: every gateway counts its own requests."""

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
    """The identity of an engine after an update that ended its model's spaces."""

    replica: str
    root: str
    version: str


class SpacesMessage(msgspec.Struct, array_like=True):
    """One message.

    Attributes:
        begun: Epochs that began.
        used: Time of the last use by epoch id.
        fresh: New resets.
        resets: Resets that are sent again, in case a message was lost.
        updates: Engines that were updated.
    """

    begun: list[EpochMessage] = []
    used: dict[str, float] = {}
    fresh: list[ResetMessage] = []
    resets: list[ResetMessage] = []
    updates: list[ModelUpdateMessage] = []


def encode_epoch(life: SpaceEpoch) -> EpochMessage:
    """A life to be message."""
    return EpochMessage(
        *key_of(life.space),
        life.space.epoch,
        life.born_at,
        life.used_at,
        life.idle_ttl_seconds,
        life.max_age_seconds,
    )


def decode_epoch(message: EpochMessage) -> SpaceEpoch:
    """A life that was message.

    Raises:
        ValueError: it cannot be one.
    """
    check_number(message.epoch)
    space = PrefixSpace(
        message.model_id,
        message.tokenizer_id,
        message.template_version,
        message.tenant,
        message.scope,
        message.adapter,
        message.context_limit,
        message.region,
        message.epoch,
    )
    return SpaceEpoch(
        space=space,
        id=life_id(space),
        born_at=message.born_at,
        used_at=message.used_at,
        idle_ttl_seconds=message.idle_ttl_seconds,
        max_age_seconds=message.max_age_seconds,
    )


def encode_reset(reset: Reset) -> ResetMessage:
    """A reset to be message."""
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


def decode_reset(message: ResetMessage) -> Reset:
    """A reset that was message.

    Raises:
        ValueError: it cannot be one.
    """
    selection = SpaceSelection(message.model, message.tenant, message.template_version, message.scope)
    return Reset(selection, message.owner, check_number(message.epoch), ResetCause(message.cause), message.by)


def reset_name(reset: Reset) -> str:
    """What a reset is written down as: a later one of the same selection takes its place."""
    return f"reset:{hashlib.sha256(repr(reset.key).encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def life_name(life: SpaceEpoch) -> str:
    """What a life is written down as."""
    return f"life:{life.id}"
