"""Replicas from a file that is read again when it changes."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, field_validator

from gateway.config.config_file import Stamp, file_stamp, named_files, read_list
from gateway.config.replica_settings import ReplicaSettings
from gateway.core.errors import ConfigInvalid
from gateway.discovery.discovered import DiscoveredReplica, SourceFailed

_LOOK_SECONDS = 1.0
"""Time between two looks at the file. A changed file is read once two looks in a row show the same: a writer in
place has mostly finished then."""

_State = dict[Path, Stamp]


class _ReplicaList(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    replicas: tuple[ReplicaSettings, ...]

    @field_validator("replicas")
    @classmethod
    def _names_are_unique(cls, replicas: tuple[ReplicaSettings, ...]) -> tuple[ReplicaSettings, ...]:
        first: dict[str, int] = {}
        for position, replica in enumerate(replicas):
            if first.setdefault(replica.id, position) != position:
                raise ValueError(f"[{position}] is named {replica.id} as [{first[replica.id]}] is (give it another id)")
        return replicas


def read_replicas(path: Path) -> Sequence[ReplicaSettings]:
    """The replicas in a file. Blocks.

    Raises:
        ConfigInvalid: it cannot be read or holds mistakes, each as one line.
    """
    return read_list(path, _ReplicaList, "replicas").replicas


class FileSource:
    """A ``ReplicaSource``.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: Sequence[Path] = ()  # of connections to the replicas
        self._read: _State | None = None

    async def answers(self) -> AsyncGenerator[Sequence[DiscoveredReplica], None]:
        """See ``ReplicaSource``."""
        seen = self._read
        while True:
            state = await asyncio.to_thread(_state, self._path, self._files)
            if state != self._read and (self._read is None or state == seen):
                self._read = state
                found = await asyncio.to_thread(self._found)
                self._read = state = await asyncio.to_thread(_state, self._path, self._files) | state
                yield found
            seen = state
            await asyncio.sleep(_LOOK_SECONDS)

    def _found(self) -> Sequence[DiscoveredReplica]:
        try:
            replicas = read_replicas(self._path)
        except ConfigInvalid as invalid:
            raise SourceFailed("; ".join(invalid.problems)) from None
        self._files = [file for each in replicas for file in each.tls_files if file is not None]
        return [DiscoveredReplica(replica) for replica in replicas]


def _state(path: Path, files: Sequence[Path]) -> _State:
    """Stamps of the file, of the secret files it names, and of others, to detect changes."""
    return {each: file_stamp(each) for each in (path, *named_files(path), *files)}
