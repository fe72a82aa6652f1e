"""Replicates the epochs of spaces between gateways, so that all use the same epoch of a space.

New epochs, their use and resets are sent to peers at once, through ``Replicated``. They are also stored as
``SharedRecords``, for gateways that start later or have missed messages. Of two epochs of one space that two gateways
begin independently, the later one is kept, so that no reset is undone. The messages and records come first.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec
import structlog

from gateway.core.ids import ReplicaId
from gateway.core.ports import SharedRecords
from gateway.core.space import PrefixSpace, ResetCause, SpaceSelection
from gateway.spaces.prefix_spaces import PrefixSpaces
from gateway.spaces.resets import EpochChanges, Reset
from gateway.spaces.space_epoch import SpaceEpoch, check_number, epoch_id
from gateway.tasks import TaskGroupOwner


class EpochMessage(msgspec.Struct, array_like=True):
    """An epoch, without its totals: every gateway counts its own requests. ``prompt`` is last, because earlier releases
    do not know it."""

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
    prompt: str = ""


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
    prompt: str | None = None


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


def encode_epoch(space_epoch: SpaceEpoch) -> EpochMessage:
    """The message about an epoch."""
    space = space_epoch.space
    return EpochMessage(
        space.model_id,
        space.tokenizer_id,
        space.template_version,
        space.tenant,
        space.scope,
        space.adapter,
        space.context_limit,
        space.region,
        space.epoch,
        space_epoch.born_at,
        space_epoch.used_at,
        space_epoch.idle_ttl_seconds,
        space_epoch.max_age_seconds,
        space.prompt,
    )


def decode_epoch(message: EpochMessage) -> SpaceEpoch:
    """The epoch of a message.

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
        message.prompt,
    )
    return SpaceEpoch(
        space=space,
        id=epoch_id(space),
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
        chosen.prompt,
    )


def decode_reset(message: ResetMessage) -> Reset:
    """A reset that was message.

    Raises:
        ValueError: it cannot be one.
    """
    selection = SpaceSelection(message.model, message.tenant, message.template_version, message.scope, message.prompt)
    return Reset(selection, message.owner, check_number(message.epoch), ResetCause(message.cause), message.by)


def reset_name(reset: Reset) -> str:
    """What a reset is written down as: a later one of the same selection takes its place."""
    return f"reset:{hashlib.sha256(repr(reset.key).encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def epoch_name(space_epoch: SpaceEpoch) -> str:
    """Name of the record of an epoch."""
    return f"life:{space_epoch.id}"


_ROUND_SECONDS = 1.0
_USED_SECONDS = 0.5
"""Interval at which the last use of epochs is sent."""

_AGAIN_SECONDS = 60.0
"""How long a reset is repeated in messages."""

_FIRST_SECONDS = 2.0
"""How long the start waits for the stored records."""

_SYNCS_AFTER_LOSS = 2
"""Reads of the records after a lost message: the peer writes its records within a round, so they are read twice."""

_STALE_SHARE = 0.1
"""Share of the idle TTL by which the stored last use of an epoch may be out of date."""

_AT_ONCE = 100

_epoch_decoder = msgspec.msgpack.Decoder(EpochMessage)
_reset_decoder = msgspec.msgpack.Decoder(ResetMessage)
_log = structlog.get_logger("gateway.spaces")


class ReplicatedSpaces:
    """A ``Replicated``, and the background work that reads and writes the records.

    Args:
        spaces: The spaces of this gateway.
        records: The stored records. It counts and logs its failures itself.
        on_update: Called for an engine update detected by another gateway: replica, root, version.
        wall: Unix seconds.
    """

    def __init__(
        self,
        spaces: PrefixSpaces,
        records: SharedRecords,
        *,
        on_update: Callable[[ReplicaId, str, str], None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._spaces = spaces
        self._records = records
        self._on_update = on_update
        self._wall = wall
        spaces.changes = EpochChanges()
        # To be sent.
        self._begun: list[SpaceEpoch] = []
        self._used: dict[str, float] = {}
        self._used_sent_at = 0.0
        self._fresh: list[Reset] = list(spaces.resets)  # what the file of the last process led to
        self._raised: list[Reset] = []
        self._recent: list[tuple[float, Reset]] = []
        self._updates: list[ModelUpdateMessage] = []
        # To be stored.
        self._unwritten: dict[str, SpaceEpoch | Reset | None] = {}
        self._written_used: dict[str, float] = {}
        self._syncs = 1
        self._writing = asyncio.Lock()
        self._tasks = TaskGroupOwner()
        self._ending = False

    async def start(self) -> None:
        """Read the records, for at most ``_FIRST_SECONDS``, and start."""
        with suppress(Exception):  # it is counted and logged, and tried again
            async with asyncio.timeout(_FIRST_SECONDS):
                await self._sync()
        self._tasks.spawn(self._run(), name="shared-spaces")

    async def stop(self) -> None:
        """Write pending records, for at most ``_ROUND_SECONDS``, and stop."""
        self._ending = True
        await self._tasks.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ROUND_SECONDS):
                await self.write()

    def engine_updated(self, replica: ReplicaId, root: str, version: str) -> None:
        """Send an engine update for which spaces were reset."""
        self._updates.append(ModelUpdateMessage(replica, root, version))

    async def write(self) -> bool:
        """Write pending records. Returns whether this succeeded; else it is retried."""
        async with self._writing:
            self._collect()
            return await self._write()

    # Shared

    def changes(self, now: float, *, everything: bool) -> SpacesMessage | None:
        """See ``Replicated``."""
        self._collect()
        outgoing = SpacesMessage()
        if self._used and (now - self._used_sent_at >= _USED_SECONDS or everything):
            outgoing.used, self._used, self._used_sent_at = self._used, {}, now
        if everything:
            self._recent = [(at, reset) for at, reset in self._recent if now - at < _AGAIN_SECONDS]
            outgoing.resets = [encode_reset(reset) for _, reset in self._recent]
        outgoing.resets += [encode_reset(reset) for reset in self._raised]
        outgoing.begun = [encode_epoch(space_epoch) for space_epoch in self._begun if space_epoch.ended_at is None]
        outgoing.fresh = [encode_reset(reset) for reset in self._fresh]
        outgoing.updates = self._updates
        self._recent += ((now, reset) for reset in (*self._fresh, *self._raised))
        self._begun, self._fresh, self._raised, self._updates = [], [], [], []
        return outgoing if outgoing != SpacesMessage() else None

    def receive(self, peer: str, message: SpacesMessage, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        wall = self._wall()
        for update in message.updates:
            self._on_update(ReplicaId(update.replica), update.root, update.version)
        for fresh, resets in ((False, message.resets), (True, message.fresh)):
            for each in resets:
                reset = decode_reset(each)
                # Each gateway detects an update on its own; epochs that began after it are of the new version.
                self._spaces.take_reset(reset, wall, fresh=fresh and reset.cause is ResetCause.MANUAL)
        for space_epoch in message.begun:
            self._spaces.adopt(decode_epoch(space_epoch), wall)
        for name, used_at in message.used.items():
            self._spaces.used_elsewhere(name, used_at, wall)

    def missed(self, peer: str, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        self._syncs = _SYNCS_AFTER_LOSS

    def gone(self, peer: str, now: float) -> None:
        """See ``Replicated``."""

    # Records

    async def _run(self) -> None:
        while not self._ending:  # redis-py swallows a cancellation now and then
            await asyncio.sleep(_ROUND_SECONDS)
            try:
                if await self.write() and self._syncs:
                    await self._sync()
            except Exception as error:  # noqa: BLE001 - Redis is unreachable, mostly; the records count it
                _log.debug("shared_spaces_failed", error=type(error).__name__)

    async def _sync(self) -> None:
        """Read the records, and schedule missing ones to be written."""
        syncs = self._syncs
        found = await self._records.read()
        for count, (name, value) in enumerate(found.items()):
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)  # let requests run
            try:
                if not self._take(name, value):
                    self._unwritten.setdefault(name)
            except (msgspec.MsgspecError, ValueError):
                _log.warning("shared_space_unreadable")
                self._unwritten.setdefault(name)
        self._all_unwritten(found)
        if self._syncs == syncs:
            self._syncs -= 1

    def _take(self, name: str, value: bytes) -> bool:
        """Apply a record; False if it may be deleted."""
        if name.startswith("reset:"):
            return self._spaces.take_reset(decode_reset(_reset_decoder.decode(value)), self._wall(), fresh=False)
        return self._spaces.adopt(decode_epoch(_epoch_decoder.decode(value)), self._wall())

    def _all_unwritten(self, written: Collection[str] = ()) -> None:
        for reset in self._spaces.resets:
            self._unwritten[reset_name(reset)] = reset
        for space_epoch in self._spaces.epochs:
            if self._spaces.numbered and epoch_name(space_epoch) not in written:
                self._unwritten[epoch_name(space_epoch)] = space_epoch

    def _collect(self) -> None:
        """Collect the changes since the last call."""
        changes, self._spaces.changes = self._spaces.changes, EpochChanges()
        assert changes is not None
        for space_epoch in changes.begun:
            if self._spaces.numbered:  # else epochs follow from resets
                self._begun.append(space_epoch)
                self._unwritten[epoch_name(space_epoch)] = space_epoch
        for space_epoch in changes.used:
            if self._spaces.numbered:
                self._used[space_epoch.id] = space_epoch.used_at
                stale = space_epoch.used_at - self._written_used.get(space_epoch.id, space_epoch.born_at)
                if space_epoch.idle_ttl_seconds is not None and stale > _STALE_SHARE * space_epoch.idle_ttl_seconds:
                    self._unwritten[epoch_name(space_epoch)] = space_epoch
        for space_epoch in changes.ended:
            self._written_used.pop(space_epoch.id, None)
            if space_epoch.cause is not ResetCause.CROWDED_OUT:
                self._unwritten[epoch_name(space_epoch)] = None
        for reset in changes.resets:
            self._fresh.append(reset)
            self._unwritten[reset_name(reset)] = reset
        for reset in changes.raised:
            self._raised.append(reset)
            self._unwritten[reset_name(reset)] = reset

    async def _write(self) -> bool:
        changes, self._unwritten = self._unwritten, {}
        try:
            there = await self._records.write({name: _written(change) for name, change in changes.items()})
        except BaseException as error:
            self._unwritten = changes | self._unwritten
            # Peers may have written meanwhile, and may have missed messages, too.
            self._syncs = max(self._syncs, 1)
            if not isinstance(error, Exception):
                raise
            return False
        for change in changes.values():
            if isinstance(change, SpaceEpoch) and change.ended_at is None:
                self._written_used[change.id] = change.used_at
        if not there:
            self._all_unwritten()  # the records were empty or deleted
        return True


def _written(change: SpaceEpoch | Reset | None) -> bytes | None:
    if isinstance(change, SpaceEpoch):
        return None if change.ended_at is not None else msgspec.msgpack.encode(encode_epoch(change))
    return None if change is None else msgspec.msgpack.encode(encode_reset(change))
