"""Background work around ``PrefixSpaces``: expiry, the file of epochs, model updates, and resets by operators."""

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import structlog

from gateway.core.errors import BadRequest, ConfigInvalid, GatewayError
from gateway.core.ids import ModelId, ReplicaId
from gateway.core.space import ResetCause, SpaceEnd, SpaceSelection
from gateway.core.tenant import Tenant
from gateway.spaces.engine_identity import EngineIdentities, EngineIdentity
from gateway.spaces.prefix_spaces import PrefixSpaces
from gateway.spaces.replicated_spaces import ReplicatedSpaces
from gateway.spaces.space_epoch import SpaceEpoch, parts_of
from gateway.tasks import TaskGroupOwner

_VERSION = 1


class EpochFile:
    """Reads and writes the file. All of it blocks; call it from a thread.

    Args:
        path: Path of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> bool:
        """Lock the file for this process; False if another process holds the lock, which ends with the process.

        Raises:
            OSError: the lock file, next to it, cannot be created.
        """
        fd = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._lock = fd
        return True

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self) -> dict[str, Any] | None:
        """The content of the file; None if there is no file yet.

        Raises:
            OSError: it cannot be read.
            ValueError: it has another format.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        document = orjson.loads(content)
        if not isinstance(document, dict) or document.get("version") != _VERSION:
            raise ValueError(f"not a file of version {_VERSION}")
        return document

    def write(self, document: dict[str, Any]) -> None:
        """Replace the file. Once this returns, a crash of the machine leaves it as it is.

        Raises:
            OSError: it cannot be written; the old one is still there.
        """
        content = orjson.dumps({"version": _VERSION} | document)
        new_file = self.path.with_name(f"{self.path.name}.new")
        with _private(new_file) as fd:
            written = 0
            while written < len(content):
                written += os.write(fd, content[written:])
            os.fsync(fd)
        new_file.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def set_aside(self) -> Path:
        """Rename a file that cannot be read.

        Raises:
            OSError: it cannot be moved.
        """
        bad = self.path.with_name(f"{self.path.name}.bad")
        self.path.replace(bad)
        return bad


@contextlib.contextmanager
def _private(path: Path) -> Iterator[int]:
    """A new file that only this user can read: it holds the names of tenants."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


_SWEEP_SECONDS = 1.0
_WRITE_EVERY = 5
"""Sweeps between two writes of the file. After a crash in between, the affected spaces start with a new epoch."""

_log = structlog.get_logger("gateway.spaces")


class SpaceKeeper:
    """Lists and resets prefix spaces for operators; the background work around ``PrefixSpaces``.

    Args:
        spaces: The spaces.
        file: The file they are stored in; None for none.
        models: The model of every replica at the start.
        served: Further models that have no replica yet.
        tenant: Looks up a tenant by its name.
        on_file_error: Called for every failed write or read of the file.
    """

    def __init__(
        self,
        spaces: PrefixSpaces,
        file: EpochFile | None,
        *,
        models: Mapping[ReplicaId, ModelId],
        served: Collection[ModelId] = (),
        tenant: Callable[[str], Tenant | None],
        on_file_error: Callable[[], None],
    ) -> None:
        self._spaces = spaces
        self._file = file
        self._models = dict(models)
        self._served = {*models.values(), *served}
        self._tenant = tenant
        self._on_file_error = on_file_error
        self._identities = EngineIdentities()
        self._tasks = TaskGroupOwner()
        self._writing = asyncio.Lock()
        self._failing = False
        self.shared: ReplicatedSpaces | None = None
        """Replication to other gateways; None without."""

    def load(self) -> None:
        """Restore the file of the last process. Blocks; for the start.

        Raises:
            ConfigInvalid: the file cannot be locked, read or replaced.
        """
        if self._file is None:
            return
        try:
            if not self._file.lock():
                raise ConfigInvalid(
                    [f"spaces.file: {self._file.path} is in use by another gateway. Give each a file of its own."]
                )
            document = self._file.read()
            if document is not None:
                self._identities.load(document["engines"], self._models)
                self._spaces.load(document["spaces"], time.time())
            self._file.write({"spaces": self._spaces.dump(), "engines": self._identities.dump()})
        except OSError as error:
            raise ConfigInvalid(
                [f"spaces.file: {self._file.path} cannot be used: {error.strerror or error}. Name a file that can."]
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # New epochs are always safe; refusing to start would take the gateway out of service.
            self._on_file_error()
            with contextlib.suppress(OSError):
                bad = self._file.set_aside()
                _log.error(
                    "spaces_file_unreadable",
                    problem=type(error).__name__,
                    instead="every space starts with a new epoch",
                    kept_as=str(bad),
                )

    def start(self) -> None:
        """Start the background work, after every replica was checked once."""
        self._identities.started()
        self._tasks.spawn(self._run(), name="spaces")

    async def stop(self) -> None:
        """Stop, and write the file a last time."""
        await self._tasks.cancel()
        if self._spaces.changed:
            await self._write()
        if self._file is not None:
            self._file.unlock()

    def joined(self, replica: ReplicaId, model: ModelId) -> None:
        """A replica has joined."""
        self._models[replica] = model
        self._served.add(model)

    def left(self, replica: ReplicaId) -> None:
        """A replica has left for good."""
        self._models.pop(replica, None)
        self._identities.forget(replica)
        self._spaces.changed = True

    def engine_seen(self, replica: ReplicaId, root: str, version: str) -> bool:
        """Record the identity of a replica's engine: an update ends the model's spaces. Returns whether it was one."""
        model = self._models[replica]
        self._spaces.changed = True
        if not self._identities.seen(replica, model, EngineIdentity(root, version)):
            return False
        ends = self._spaces.reset(SpaceSelection(model=model), ResetCause.MODEL_UPDATE, time.time())
        if self.shared is not None:
            self.shared.engine_updated(replica, root, version)
        _log.warning("model_updated", replica=replica, model=model, root=root, version=version, spaces_ended=len(ends))
        return True

    def engine_seen_elsewhere(self, replica: ReplicaId, root: str, version: str) -> None:
        """Another gateway has detected an update of a replica's engine, and has reset the affected spaces."""
        model = self._models.get(replica)
        if model is not None:
            self._identities.seen(replica, model, EngineIdentity(root, version))
            self._spaces.changed = True

    def shown(self) -> Iterator[dict[str, object]]:
        """All spaces, then the last ended epochs, JSON-ready and made one by one; as in ``GET /admin/api/spaces``."""
        return (_shown(space_epoch, alive) for space_epoch, alive in self._spaces.shown())

    async def reset(self, selection: SpaceSelection, by: str) -> Sequence[SpaceEnd]:
        """End the epochs of all spaces of a selection. Returns when a restart of the gateway cannot undo it.

        Args:
            selection: Which spaces.
            by: Id of the admin token, empty without one.

        Raises:
            BadRequest: it names a model or a tenant that does not exist.
            GatewayError: the file cannot be written.
        """
        models = self._served
        if selection.model is not None and selection.model not in models:
            known = ", ".join(sorted(models))
            raise BadRequest(
                f"There is no model {selection.model[:100]!r}. There is: {known}.", param="model", code="unknown_model"
            )
        tenant = None
        if selection.tenant is not None:
            tenant = self._tenant(selection.tenant)
            if tenant is None:
                raise BadRequest(
                    f"There is no tenant {selection.tenant[:100]!r}.", param="tenant", code="unknown_tenant"
                )
            if not self._spaces.tenant_has_spaces(tenant):
                raise BadRequest(
                    "Tenants share their prefixes (spaces.isolation is none): leave the tenant out to reset for all.",
                    param="tenant",
                    code="not_isolated",
                )
        ends = self._spaces.reset(selection, ResetCause.MANUAL, time.time(), by=by, tenant=tenant)
        _log.info("spaces_reset", by=by, spaces_ended=len(ends), **_given(selection))
        if self._file is not None and not await self._write():
            raise GatewayError(
                f"{len(ends)} spaces are reset, but spaces.file cannot be written: a restart of the gateway would undo"
                " it. The log has the reason; fix it, then reset again.",
                code="spaces_file_failed",
            )
        if self.shared is not None and not await self.shared.write():
            raise GatewayError(
                f"{len(ends)} spaces are reset at this gateway. The shared state cannot be written, so other gateways"
                " may use them until it can be written. The log has the reason.",
                code="state_failed",
            )
        return ends

    async def _run(self) -> None:
        sweeps = 0
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            sweeps += 1
            try:
                self._spaces.expire(time.time())
                if sweeps % _WRITE_EVERY == 0 and self._spaces.changed:
                    await self._write()
            except Exception:  # noqa: BLE001
                # Any error: expiry has to continue.
                _log.exception("space_sweep_failed")

    async def _write(self) -> bool:
        """Write the file; returns whether it contains the state of the time of the call."""
        if self._file is None:
            self._spaces.changed = False
            return True
        async with self._writing:
            self._spaces.changed = False
            spaces, engines, file = self._spaces.snapshot(), self._identities.dump(), self._file
            try:
                await asyncio.to_thread(lambda: file.write({"spaces": spaces(), "engines": engines}))
            except Exception as error:  # noqa: BLE001 - a full disk, mostly; on any error it was not written
                self._spaces.changed = True
                self._on_file_error()
                if not self._failing:
                    problem = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
                    _log.error("spaces_file_failed", file=str(self._file.path), problem=problem)
                self._failing = True
                return False
        if self._failing:
            _log.info("spaces_file_written_again", file=str(self._file.path))
        self._failing = False
        return True


def _shown(space_epoch: SpaceEpoch, alive: bool) -> dict[str, object]:
    figures = space_epoch.figures
    return (
        {"id": space_epoch.id, "state": "alive" if alive else "ended", "cause": space_epoch.cause}
        | {("model" if name == "model_id" else name): value for name, value in parts_of(space_epoch.space).items()}
        | {
            "born_at": round(space_epoch.born_at, 3),
            "used_at": round(space_epoch.used_at, 3),
            "ended_at": None if space_epoch.ended_at is None else round(space_epoch.ended_at, 3),
            "expires_at": None if not alive or space_epoch.expires_at is None else round(space_epoch.expires_at, 3),
            "requests": figures.requests,
            "prompt_tokens": figures.prompt_tokens,
            "cached_tokens": figures.cached_tokens,
            "saved_prefill_seconds": round(figures.saved_prefill_seconds, 3),
        }
    )


def _given(selection: SpaceSelection) -> dict[str, str]:
    return {name: value for name, value in asdict(selection).items() if value is not None}
