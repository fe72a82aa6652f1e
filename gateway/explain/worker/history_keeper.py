"""Keeps the journal's history: saves it every minute and at the end, and gives it back to the explain worker.

Where: in a file, or, with several gateways, in their shared records. There each explain worker has a record of its own;
the record of one that is gone is taken over by exactly one other, so that the sum over all gateways stays the same.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from gateway.core.errors import GatewayError
from gateway.core.ports import SharedRecords
from gateway.stats.history import HistoryInvalid, decoded, sender_of
from gateway.tasks import TaskGroupOwner

if TYPE_CHECKING:
    from gateway.explain.worker.explain_client import ExplainClient

SAVE_SECONDS = 60.0
GONE_SECONDS = 3 * SAVE_SECONDS
"""A record that did not change for so long, while the store answered, belongs to a worker that is gone."""

_LEFT = 0.0
"""In place of a time: the worker has ended, and its record can be taken over at once."""

_END_SECONDS = 3.0
_Written = tuple[float, bytes]
_decoder = msgspec.msgpack.Decoder(_Written)
_log = structlog.get_logger("gateway.explain.worker")


class FileHistory:
    """A history in a file of this machine.

    Args:
        path: The file. Its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._taken = False
        # One thread, so that a write that outlives its caller cannot replace a later one.
        self._thread = ThreadPoolExecutor(1, "history")

    async def take(self) -> Sequence[bytes]:
        """Histories of workers that are gone, for this gateway to go on with. A file that cannot be read is kept beside
        the new one.

        Raises:
            OSError: the file cannot be read now.
        """
        if self._taken:
            return ()
        found = await asyncio.get_running_loop().run_in_executor(self._thread, self._read)
        self._taken = True
        return found

    async def save(self, data: bytes, *, is_last: bool = False) -> None:  # noqa: ARG002 - a file has one gateway
        """Replace the own history.

        Raises:
            OSError: the file cannot be written now.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._write, data)

    async def others(self) -> Sequence[bytes]:
        """The histories of other workers, for sums over all gateways: a file has none."""
        return ()

    def _read(self) -> Sequence[bytes]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return ()
        try:
            decoded(data)
        except HistoryInvalid as invalid:
            kept = self._path.with_name(f"{self._path.name}.unreadable")
            self._path.replace(kept)
            _log.warning("history_unreadable", file=str(self._path), problem=str(invalid), kept_as=str(kept))
            return ()
        return (data,)

    def _write(self, data: bytes) -> None:
        partial = self._path.with_name(f"{self._path.name}.new")
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        partial.replace(self._path)


class SharedHistory:
    """Histories in records that gateways share, each under the name of its worker.

    Args:
        records: The records.
        wall: Unix seconds, written into records.
        clock: Monotonic seconds, by which records of workers that are gone are recognized: clocks of gateways differ.
    """

    def __init__(
        self,
        records: SharedRecords,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._wall = wall
        self._clock = clock
        self._name: str | None = None
        # For each record: when it was written, and since when it is known like that.
        self._known: dict[str, tuple[float, float]] = {}

    async def take(self) -> Sequence[bytes]:
        """Histories of workers that are gone, for this gateway to go on with.

        Raises:
            Exception: the records cannot be read now.
        """
        known, self._known = self._known, {}  # while the store does not answer, no worker could write
        found, now = await self._read(), self._clock()
        for name, (written_at, _) in found.items():
            before = known.get(name)
            self._known[name] = before if before is not None and before[0] == written_at else (written_at, now)
        gone = [
            name
            for name, (written_at, since) in self._known.items()
            if name != self._name and (written_at == _LEFT or now - since >= GONE_SECONDS)
        ]
        taken = [await self._records.take(name) for name in gone]
        return [_decoder.decode(value)[1] for value in taken if value is not None]

    async def save(self, data: bytes, *, is_last: bool = False) -> None:
        """Replace the own history; ``is_last``: this gateway ends.

        Raises:
            Exception: the records cannot be written now.
        """
        name = sender_of(data).hex()
        written = msgspec.msgpack.encode((_LEFT if is_last else self._wall(), data))
        changes: dict[str, bytes | None] = {name: written}
        if self._name not in (None, name):
            changes[str(self._name)] = None  # the worker was started again, and goes on with the history of the old one
        await self._records.write(changes)
        self._name = name

    async def others(self) -> Sequence[bytes]:
        """The histories of other workers, for sums over all gateways.

        Raises:
            Exception: the records cannot be read now.
        """
        return [data for name, (_, data) in (await self._read()).items() if name != self._name]

    async def _read(self) -> dict[str, _Written]:
        found = {}
        for name, value in (await self._records.read()).items():
            with contextlib.suppress(msgspec.MsgspecError, HistoryInvalid):
                written = _decoder.decode(value)
                sender_of(written[1])
                found[name] = written
        return found


class HistoryKeeper:
    """Saves the history and restores it.

    Args:
        store: Where it is kept.
        desk: The explain worker's client.
        on_error: Called when the store cannot be read or written.
        save_seconds: Interval of saves.
    """

    def __init__(
        self,
        store: FileHistory | SharedHistory,
        desk: "ExplainClient",
        on_error: Callable[[], None],
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        self._store = store
        self._desk = desk
        self._on_error = on_error
        self._save_seconds = save_seconds
        self._is_read = False
        self._failed = False
        self._saving = asyncio.Lock()
        self._tasks = TaskGroupOwner()

    def start(self) -> None:
        """Read the history in the background, and save it from then on."""
        self._tasks.spawn(self._keep(), name="history")

    async def stop(self) -> None:
        """Save a last time, with all requests that were answered, within a timeout."""
        await self._tasks.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._desk.drain()
                await self._save(is_last=True)

    async def others(self) -> tuple[bytes, ...] | None:
        """The histories of other gateways; None if they cannot be read."""
        try:
            return tuple(await self._store.others())
        except Exception as error:  # noqa: BLE001 - the own figures are shown without them
            self._report(error, "read")
            return None

    async def _keep(self) -> None:
        while True:
            await self._take()
            await self._save()
            await asyncio.sleep(self._save_seconds)

    async def _take(self) -> None:
        try:
            for data in await self._store.take():
                self._desk.restore(data)
        except Exception as error:  # noqa: BLE001 - tried again with the next save
            self._report(error, "read")
            return
        self._is_read = True

    async def _save(self, *, is_last: bool = False) -> None:
        if not self._is_read:
            return  # what is stored would be replaced without having been read
        async with self._saving:
            try:
                data = await self._desk.history()
            except GatewayError:
                return  # the worker is being started again, and goes on with what was saved last
            try:
                await self._store.save(data, is_last=is_last)
            except Exception as error:  # noqa: BLE001 - tried again a minute later
                self._report(error, "written")
                return
            self._failed = False
            self._desk.saved(data)

    def _report(self, error: Exception, step: str) -> None:
        """Count every failure; log the first one in a row."""
        self._on_error()
        if not self._failed:
            _log.warning("history_not_kept", step=step, error=type(error).__name__, problem=str(error))
        self._failed = True
