"""Model root and version of each engine, to detect model updates. Pure."""

from dataclasses import dataclass

from gateway.core.ids import ModelId, ReplicaId


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Model and version of an engine.

    Attributes:
        root: Path or name of the loaded model, from ``/v1/models``; empty if unknown.
        version: Version of the engine; empty if unknown.
    """

    root: str = ""
    version: str = ""

    def updated(self, new: "EngineIdentity") -> "EngineIdentity":
        """This, with the known parts of ``new``."""
        return EngineIdentity(new.root or self.root, new.version or self.version)


class EngineIdentities:
    """Distinguishes an update of a model from replicas that differ.

    An update rolls through the replicas one after the other, and only the first one that changes ends the model's
    spaces: otherwise every further one would invalidate what the updated ones have just computed.
    """

    def __init__(self) -> None:
        self._of_replica: dict[ReplicaId, EngineIdentity] = {}
        self._of_model: dict[ModelId, EngineIdentity] = {}
        self._unmet: dict[ReplicaId, EngineIdentity] = {}
        """Loaded from the file, of replicas that have not joined yet."""
        self._started = False

    def started(self) -> None:
        """All replicas were checked once: a replica seen for the first time from now on has joined later."""
        self._started = True

    def seen(self, replica: ReplicaId, model: ModelId, identity: EngineIdentity) -> bool:
        """Record the identity of a replica; returns whether its model was updated."""
        before = self._of_replica.get(replica)
        if before is None and (before := self._unmet.pop(replica, None)) is not None:
            self._of_model.setdefault(model, before)
        present = identity if before is None else before.updated(identity)
        self._of_replica[replica] = present
        newest = self._of_model.get(model)
        if newest is None:
            self._of_model[model] = present
            return False
        if before == present or (before is None and not self._started):
            return False
        completed = newest.updated(present)
        if completed == newest:
            return False
        # A part that was unknown before is not a change.
        changed = any(old and old != new for old, new in zip(_parts(newest), _parts(completed), strict=True))
        self._of_model[model] = completed
        return changed

    def forget(self, replica: ReplicaId) -> None:
        """A replica has left."""
        self._of_replica.pop(replica, None)

    def dump(self) -> dict[str, list[str]]:
        """JSON-ready; for ``load``."""
        # Replicas that have not joined when all were checked are dropped.
        kept = self._of_replica if self._started else self._unmet | self._of_replica
        return {replica: list(_parts(identity)) for replica, identity in kept.items()}

    def load(self, dumped: dict[str, list[str]], models: dict[ReplicaId, ModelId]) -> None:
        """Restore the state of a previous process.

        Args:
            dumped: What ``dump`` gave.
            models: The model of every replica there is now.

        Raises:
            AttributeError, TypeError, ValueError: ``dumped`` is malformed.
        """
        for name, (root, version) in dumped.items():
            replica = ReplicaId(name)
            if not isinstance(root, str) or not isinstance(version, str):
                raise TypeError("a root or a version is not a string")
            if replica in models:
                self._of_replica[replica] = EngineIdentity(root, version)
                self._of_model.setdefault(models[replica], EngineIdentity(root, version))
            else:
                self._unmet[replica] = EngineIdentity(root, version)


def _parts(identity: EngineIdentity) -> tuple[str, str]:
    return identity.root, identity.version
