"""The spaces that several gateways lead requests into together: one life for all, and one end.

What begins, is used and is reset is told to the others at once, through ``Replicated``. So that it outlives them, and
reaches those that could not receive it, it is stored as ``SharedRecords`` as well. Of two epochs of one space that two
gateways begin independently, the later one is kept, so that nothing that was reset before is valid again.
"""

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec
import structlog

from gateway.core.ids import ReplicaId
from gateway.core.ports import SharedRecords
from gateway.core.space import ResetCause
from gateway.spaces.epoch_changes import EpochChanges, Reset
from gateway.spaces.prefix_spaces import PrefixSpaces
from gateway.spaces.replicated_messages import (
    EpochMessage,
    ModelUpdateMessage,
    ResetMessage,
    SpacesMessage,
    heard_life,
    heard_reset,
    life_name,
    reset_name,
    told_life,
    told_reset,
)
from gateway.spaces.space_epoch import SpaceEpoch
from gateway.tasks import TaskGroupOwner

_ROUND_SECONDS = 1.0
_USED_SECONDS = 0.5
"""How often it is told which lives were used."""

_AGAIN_SECONDS = 60.0
"""How long a reset is told again and again."""

_FIRST_SECONDS = 2.0
"""How long a start waits for what is written down."""

_SYNCS_AFTER_LOSS = 2
"""What a peer told and was lost it writes down within a round; so it is read twice."""

_STALE_SHARE = 0.1
"""Of its idle time: by so much the last use of a life may be later than written down."""

_AT_ONCE = 100

_life_decoder = msgspec.msgpack.Decoder(EpochMessage)
_reset_decoder = msgspec.msgpack.Decoder(ResetMessage)
_told_decoder = msgspec.msgpack.Decoder(SpacesMessage)
_log = structlog.get_logger("gateway.spaces")


class ReplicatedSpaces:
    """A ``Replicated``, and the background work that writes down and reads.

    Args:
        spaces: The spaces of this gateway.
        records: Where they are written down. It counts and logs its failures itself.
        on_update: Called with what an engine was found to run at another gateway: replica, root, version.
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
        # To be told.
        self._begun: list[SpaceEpoch] = []
        self._used: dict[str, float] = {}
        self._used_told_at = 0.0
        self._fresh: list[Reset] = []
        self._raised: list[Reset] = []
        self._recent: list[tuple[float, Reset]] = []
        self._updates: list[ModelUpdateMessage] = []
        # To be written down.
        self._unwritten: dict[str, SpaceEpoch | Reset | None] = {}
        self._written_used: dict[str, float] = {}
        self._syncs = 1
        self._writing = asyncio.Lock()
        self._tasks = TaskGroupOwner()
        self._ending = False

    async def start(self) -> None:
        """Take over what others have written down, if that is quick, and begin."""
        with suppress(Exception):  # it is counted and logged, and tried again
            async with asyncio.timeout(_FIRST_SECONDS):
                await self._sync()
        self._tasks.spawn(self._run(), name="shared-spaces")

    async def stop(self) -> None:
        """Write down what is not yet, if that is quick, and end."""
        self._ending = True
        await self._tasks.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_ROUND_SECONDS):
                await self.write()

    def engine_updated(self, replica: ReplicaId, root: str, version: str) -> None:
        """An engine was found to run something else, for which spaces were reset."""
        self._updates.append(ModelUpdateMessage(replica, root, version))

    async def write(self) -> bool:
        """Write down what is not yet. Whether that worked; if not it is tried again."""
        async with self._writing:
            self._collect()
            return await self._write()

    # Shared

    def encode_changes(self, now: float, *, everything: bool) -> bytes | None:
        """See ``Replicated``."""
        self._collect()
        told = SpacesMessage()
        if self._used and (now - self._used_told_at >= _USED_SECONDS or everything):
            told.used, self._used, self._used_told_at = self._used, {}, now
        if everything:
            self._recent = [(at, reset) for at, reset in self._recent if now - at < _AGAIN_SECONDS]
            told.resets = [told_reset(reset) for _, reset in self._recent]
        told.resets += [told_reset(reset) for reset in self._raised]
        told.begun = [told_life(life) for life in self._begun if life.ended_at is None]
        told.fresh = [told_reset(reset) for reset in self._fresh]
        told.updates = self._updates
        self._recent += ((now, reset) for reset in (*self._fresh, *self._raised))
        self._begun, self._fresh, self._raised, self._updates = [], [], [], []
        return msgspec.msgpack.encode(told) if told != SpacesMessage() else None

    def receive(self, peer: str, told: bytes, now: float) -> None:  # noqa: ARG002
        """See ``Replicated``."""
        message, wall = _told_decoder.decode(told), self._wall()
        for update in message.updates:
            self._on_update(ReplicaId(update.replica), update.root, update.version)
        for fresh, resets in ((False, message.resets), (True, message.fresh)):
            for each in resets:
                reset = heard_reset(each)
                # An update is seen by each gateway for itself: what began since is of the new release.
                self._spaces.take_reset(reset, wall, fresh=fresh and reset.cause is ResetCause.MANUAL)
        for life in message.begun:
            self._spaces.adopt(heard_life(life), wall)
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
            except Exception as error:  # noqa: BLE001 - Redis is away, mostly; it is counted where it happens
                _log.debug("shared_spaces_failed", error=type(error).__name__)

    async def _sync(self) -> None:
        """Read what is written down, and have written what is missing there."""
        syncs = self._syncs
        found = await self._records.read()
        for count, (name, value) in enumerate(found.items()):
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)  # requests go on meanwhile
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
        """Take over what is written down; false if it may be removed."""
        if name.startswith("reset:"):
            return self._spaces.take_reset(heard_reset(_reset_decoder.decode(value)), self._wall(), fresh=False)
        return self._spaces.adopt(heard_life(_life_decoder.decode(value)), self._wall())

    def _all_unwritten(self, written: Collection[str] = ()) -> None:
        for reset in self._spaces.resets:
            self._unwritten[reset_name(reset)] = reset
        for life in self._spaces.lives:
            if life.space.tenant and life_name(life) not in written:
                self._unwritten[life_name(life)] = life

    def _collect(self) -> None:
        """Take what happened since it was asked last."""
        changes, self._spaces.changes = self._spaces.changes, EpochChanges()
        assert changes is not None
        for life in changes.begun:
            if life.space.tenant:  # others have an epoch of their own only by a reset
                self._begun.append(life)
                self._unwritten[life_name(life)] = life
        for life in changes.used:
            if life.space.tenant:
                self._used[life.id] = life.used_at
                stale = life.used_at - self._written_used.get(life.id, life.born_at)
                if life.idle_ttl_seconds is not None and stale > _STALE_SHARE * life.idle_ttl_seconds:
                    self._unwritten[life_name(life)] = life
        for life in changes.ended:
            self._written_used.pop(life.id, None)
            if life.space.tenant and life.cause is not ResetCause.CROWDED_OUT:
                self._unwritten[life_name(life)] = None
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
            # Others may have written meanwhile, and heard nothing of this gateway either.
            self._syncs = max(self._syncs, 1)
            if not isinstance(error, Exception):
                raise
            return False
        for change in changes.values():
            if isinstance(change, SpaceEpoch) and change.ended_at is None:
                self._written_used[change.id] = change.used_at
        if not there:
            self._all_unwritten()  # it is empty, or was emptied
        return True


def _written(change: SpaceEpoch | Reset | None) -> bytes | None:
    if isinstance(change, SpaceEpoch):
        return None if change.ended_at is not None else msgspec.msgpack.encode(told_life(change))
    return None if change is None else msgspec.msgpack.encode(told_reset(change))
